import { messageOf } from '../../shared/errors.ts';

/** After so many failures in a row, what all items need is unavailable: the rest waits for the task's next run. */
const FAILURES_MAX = 3;

/** Works on one item after another; an item that fails does not stop the next. @throws AggregateError of all failures, at the end */
export async function eachInTurn<T>(items: readonly T[], work: (item: T) => Promise<void>): Promise<void> {
  const failures: unknown[] = [];
  let in_a_row = 0;
  for (const item of items) {
    try {
      await work(item);
      in_a_row = 0;
    } catch (error) {
      failures.push(error);
      in_a_row += 1;
      if (in_a_row === FAILURES_MAX) break;
    }
  }
  if (failures.length === 0) return;
  throw new AggregateError(failures, `${failures.length} failed, the first with: ${messageOf(failures[0])}`);
}
