/** Long work on a thread that also answers requests. */
import { setImmediate as turn } from 'node:timers/promises';

const SLICE_MS = 10;
/** Between two looks at the clock. */
const ITEMS = 64;

/**
 * Does `work` with each item, and lets others have their turn every 10 ms or so. An undefined item is a step in which there
 * was nothing to do: sources that search yield it, so that a long search can be interrupted too.
 */
export async function inSlices<T>(items: Iterable<T | undefined>, work: (item: T) => void): Promise<void> {
  let until_ms = performance.now() + SLICE_MS;
  let count = 0;
  for (const item of items) {
    if (item !== undefined) work(item);
    count += 1;
    if (count % ITEMS !== 0 || performance.now() < until_ms) continue;
    await turn();
    until_ms = performance.now() + SLICE_MS;
  }
}
