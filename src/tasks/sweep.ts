import { sql } from 'kysely';
import { deleteExpiredSessions } from '../auth/store.ts';
import type { Db } from '../db/pool.ts';

/** Removes what is past its time: ended flushes after a day, expired sessions. */
export async function sweep(db: Db): Promise<void> {
  await db.deleteFrom('flushes').where('finished_at', '<', sql<Date>`now() - interval '1 day'`).execute();
  await deleteExpiredSessions(db);
}
