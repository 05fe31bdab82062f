import { backoffMs, pause } from '../../lib/backoff.ts';
import { messageOf } from '../../lib/errors.ts';
import type { Log } from '../../lib/log.ts';

/** Tries, at least once, until it succeeds, there is nothing to try it for (`over`), or `signal` aborts. */
export async function insist(
  work: () => Promise<void>,
  { log, signal, over }: { readonly log: Log; readonly signal: AbortSignal; readonly over: () => boolean },
): Promise<void> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      if (over()) return;
      log.warn({ reason: messageOf(error) }, 'the VM is not as it should be yet');
      if (!(await pause(backoffMs(attempt, 200, 3_000), signal))) return;
    }
  }
}
