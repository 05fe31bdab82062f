/** Work on many things: some at a time, or in slices that leave others their turn. */
import { setImmediate as turn } from 'node:timers/promises';

/**
 * Calls `work` for each item, at most `at_once` at a time. After a failure no further item begins, and it is thrown once all running
 * work has ended.
 */
export async function inParallel<T>(
  items: Iterable<T>,
  at_once: number,
  work: (item: T) => Promise<void>,
): Promise<void> {
  const iterator = items[Symbol.iterator]();
  let failed = false;
  const worker = async (): Promise<void> => {
    for (let next = iterator.next(); !next.done && !failed; next = iterator.next()) {
      try {
        await work(next.value);
      } catch (error) {
        failed = true;
        throw error;
      }
    }
  };
  const ended = await Promise.allSettled(Array.from({ length: at_once }, () => worker()));
  for (const each of ended) if (each.status === 'rejected') throw each.reason;
}

/** Long work on a thread that also serves requests. */

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
