/** Time as a dependency, so that tests can hold it still. */
export interface Clock {
  /** Milliseconds since the epoch. */
  now(): number;
}

export const systemClock: Clock = { now: () => Date.now() };

/** RFC 3339, UTC, milliseconds. */
export function rfc3339(time: Date): string {
  return time.toISOString();
}
