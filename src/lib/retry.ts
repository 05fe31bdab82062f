import { backoffMs, pause } from './backoff.ts';
import { messageOf } from './errors.ts';
import type { Log } from './log.ts';

/** Tries at least once, until `work` succeeds, `isOver` says that nothing is left to try it for, or `signal` aborts. */
export async function retryWithBackoff(
  work: () => Promise<void>,
  {
    log,
    signal,
    isOver,
  }: { readonly log: Log; readonly signal: AbortSignal; readonly isOver: () => boolean },
): Promise<void> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      if (isOver()) return;
      log.warn({ reason: messageOf(error) }, 'failed; it is tried again');
      if (!(await pause(backoffMs(attempt, 200, 3_000), signal))) return;
    }
  }
}
