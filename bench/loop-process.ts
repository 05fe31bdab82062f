/**
 * The baseline loop of webhook delivery, as a separate process, so that neither side's garbage collection slows the other.
 */
import { Agent } from 'undici';
import { barePost } from './bare-post.ts';
import type { FromLoop, ToLoop } from './webhook-parties.ts';

/** Keeps its connections from round to round, as the senders do. */
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
