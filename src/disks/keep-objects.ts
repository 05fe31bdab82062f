/**
 * Keeps objects while a backup, a verification or an export reads them: no task removes any meanwhile. The means are
 * PostgreSQL's advisory locks, which end with their connection.
 *
 * Each task that removes objects takes its lock exclusively for one round, and skips the round when the lock is taken.
 * Readers take all of these locks, shared.
 */
import { sql } from 'kysely';
import pg from 'pg';
import { connectionOptions, type Db } from '../db/pool.ts';

/** The first number of each lock's pair; the second is the task's index in REMOVERS. */
const LOCKS = 7_400_003;
export const REMOVERS = ['free-deleted', 'free-segments', 'sweep-orphans'] as const;
export type Remover = (typeof REMOVERS)[number];

/** Runs one round of a task that removes objects. False when it was skipped because objects are kept. */
export async function removingObjects(db: Db, remover: Remover, work: () => Promise<void>): Promise<boolean> {
  const lock = sql`${sql.lit(LOCKS)}, ${sql.lit(REMOVERS.indexOf(remover))}`;
  return db.connection().execute(async (connection) => {
    const { rows } = await sql<{ taken: boolean }>`select pg_try_advisory_lock(${lock}) as taken`.execute(
      connection,
    );
    if (rows[0]?.taken !== true) return false;
    try {
      await work();
    } finally {
      await sql`select pg_advisory_unlock(${lock})`.execute(connection);
    }
    return true;
  });
}

/** No object is removed until `release`, or the end of this process. */
export interface KeptObjects {
  /** Throws when the connection with the locks broke: objects may have been removed since. */
  check(): Promise<void>;
  release(): Promise<void>;
}

/** Waits for the rounds under way. */
export async function keepObjects(url: string): Promise<KeptObjects> {
  const client = new pg.Client(connectionOptions(url, 0));
  client.on('error', () => undefined);
  await client.connect();
  try {
    for (const [i] of REMOVERS.entries())
      await client.query('select pg_advisory_lock_shared($1, $2)', [LOCKS, i]);
  } catch (error) {
    await client.end();
    throw error;
  }
  return {
    check: async () => void (await client.query('select 1')),
    release: () => client.end(),
  };
}
