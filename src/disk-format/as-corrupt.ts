import { ObjectNotFoundError, ObjectRangeError } from '../object-store/object-store.ts';
import { SegmentCorruptError } from './segment-format.ts';

/** An object that is gone or too short is as bad as a rotten one; anything else passes through. */
export function asCorrupt(key: string, error: unknown, block?: number): unknown {
  const about = block === undefined ? { cause: error } : { cause: error, block };
  if (error instanceof ObjectNotFoundError)
    return new SegmentCorruptError(key, 'the object is missing', about);
  if (error instanceof ObjectRangeError)
    return new SegmentCorruptError(key, 'the object is cut short', about);
  return error;
}
