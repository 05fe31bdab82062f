/** Drops the generations that retention no longer keeps. `compact-disks` then removes what they alone needed. */
import type { Db } from '../db/pool.ts';
import { dropOldGenerations } from './generation-store.ts';

export async function dropGenerations(db: Db): Promise<void> {
  await dropOldGenerations(db);
}
