import { setTimeout as sleep } from 'node:timers/promises';

/**
 * Exponential backoff with full jitter: attempt 0, 1, 2… waits a random time of up to
 * `base_ms * 2^attempt`, at most `max_ms`, and never less than a tenth of that bound.
 */
export function backoffMs(attempt: number, base_ms = 100, max_ms = 5_000, random = Math.random): number {
  const bound = Math.min(max_ms, base_ms * 2 ** Math.min(attempt, 30));
  return Math.round(bound * (0.1 + 0.9 * random()));
}

/** Waits `ms`; resolves false instead of throwing when `signal` aborts first. */
export async function pause(ms: number, signal?: AbortSignal): Promise<boolean> {
  try {
    await sleep(ms, undefined, signal ? { signal, ref: true } : { ref: true });
    return true;
  } catch {
    return false;
  }
}
