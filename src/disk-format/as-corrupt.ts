import { ObjectNotFoundError, ObjectRangeError } from '../object-store/object-store.ts';
import { SegmentCorruptError } from './segment-format.ts';

/** Reports a missing or short object as a corrupt segment. Returns any other error unchanged. */
export function asCorrupt(key: string, error: unknown, block?: number): unknown {
  const about = block === undefined ? { cause: error } : { cause: error, block };
  if (error instanceof ObjectNotFoundError)
    return new SegmentCorruptError(key, 'the object is missing', about);
  if (error instanceof ObjectRangeError)
    return new SegmentCorruptError(key, 'the object is cut short', about);
  return error;
}
