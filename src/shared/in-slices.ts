/** Long work on a thread that also serves requests. */
import { setImmediate as turn } from 'node:timers/promises';

const SLICE_MS = 10;
/** Between two readings of the clock. */
const ITEMS = 64;

/**
 * Calls `work` for each item, and yields to other work about every 10 ms. A source that searches yields undefined between its finds,
 * so that a long search is interrupted too.
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
