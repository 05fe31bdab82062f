import { messageOf } from '../lib/errors.ts';

/** So many in a row: what they all need is away, and it is asked no more until the task's next run. */
const HOPELESS = 3;

/**
 * One after another; one that fails does not keep those behind it waiting. @throws AggregateError, once all that could be
 * done is done
 */
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
      if (in_a_row === HOPELESS) break;
    }
  }
  if (failures.length === 0) return;
  throw new AggregateError(failures, `${failures.length} failed, the first with: ${messageOf(failures[0])}`);
}
