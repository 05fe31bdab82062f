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
