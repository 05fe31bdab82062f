/** A broken invariant: our bug, never the caller's fault. Answered as 500 INTERNAL. */
export class InvariantError extends Error {
  override name = 'InvariantError';
}

/** Throws {@link InvariantError} unless `condition` holds. */
export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new InvariantError(message);
}

/** Narrows away null and undefined; throws {@link InvariantError} naming `what` otherwise. */
export function present<T>(value: T | null | undefined, what: string): T {
  assert(value !== null && value !== undefined, `${what} is missing`);
  return value;
}
