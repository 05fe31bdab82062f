/**
 * The loop that webhook delivery is measured beside, in a process of its own: neither side's memory is tidied up in the
 * other's time.
 */
import { Agent } from 'undici';
import { barePost } from './bare-post.ts';
import type { FromLoop, ToLoop } from './webhook-parties.ts';

/** Its connections are kept from round to round, as the senders' are. */
const kept = new Agent();

process.on('message', async ({ id, loop, anew }: ToLoop) => {
  const dispatcher = anew ? new Agent() : kept;
  const answered_ms: number[] = [];
  let error: string | null = null;
  try {
    await barePost({ ...loop, dispatcher, answered: (ms) => void answered_ms.push(ms) });
  } catch (cause) {
    error = String(cause);
  }
  if (anew) await dispatcher.close();
  process.send?.({ id, answered_ms, error } satisfies FromLoop);
});
process.on('disconnect', () => process.exit());
