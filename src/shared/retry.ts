/** Computes exponential backoff, and repeats work until it succeeds. */
import { setTimeout as sleep } from 'node:timers/promises';
import { messageOf } from './errors.ts';
import type { Log } from './log.ts';

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

export interface RetryOptions {
  /** For the log: `repairing the VM`. */
  readonly what: string;
  readonly log: Log;
  readonly signal: AbortSignal;
  readonly isOver: () => boolean;
}

/** Tries at least once, until `work` succeeds, `isOver` says that nothing is left to try it for, or `signal` aborts. */
export async function retryWithBackoff(
  work: () => Promise<void>,
  { what, log, signal, isOver }: RetryOptions,
): Promise<void> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      if (isOver()) return;
      log.warn({ reason: messageOf(error) }, `${what} failed; it is tried again`);
      if (!(await pause(backoffMs(attempt, 200, 3_000), signal))) return;
    }
  }
}
