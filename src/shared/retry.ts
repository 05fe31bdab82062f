import { backoffMs, pause } from './backoff.ts';
import { messageOf } from './errors.ts';
import type { Log } from './log.ts';

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
