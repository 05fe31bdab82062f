import { invalid } from '../lib/errors.ts';

export const DEFAULT_LIMIT = 50;

/** A page's size from its query text. @throws AppError INVALID_REQUEST out of 1 to `max` */
export function readLimit(text: string | undefined, max: number): number {
  if (text === undefined) return DEFAULT_LIMIT;
  const limit = Number(text);
  if (!Number.isInteger(limit) || limit < 1 || limit > max) throw invalid('limit', `must be 1 to ${max}`);
  return limit;
}
