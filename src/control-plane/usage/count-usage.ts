import { type Db, transaction } from '../db/pool.ts';
import { countUsage as count } from './store.ts';

/** Counts what instances have used since the last run. */
export async function countUsage(db: Db): Promise<void> {
  await transaction(db, count);
}
