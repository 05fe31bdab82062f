/**
 * Who reads objects for a long time (a backup, a verification, an export) keeps them there: while it does, no task
 * removes any. It is said by PostgreSQL's advisory locks, so that it ends with whoever said it, however that ends.
 *
 * Each of the tasks that remove objects takes a lock of its own for as long as a round of it lasts, and has nothing to do
 * where it cannot: readers are at it, or another process. Readers take all of these locks, shared: any number at once.
 */
import { sql } from 'kysely';
import pg from 'pg';
import { connectionOptions, type Db } from '../db/pool.ts';

/** The first of the two numbers of each lock; the second is a remover's place in the list. */
const LOCKS = 7_400_003;
export const REMOVERS = ['free-deleted', 'free-segments', 'sweep-orphans'] as const;
export type Remover = (typeof REMOVERS)[number];

/** Runs a round of a task that removes objects, unless they are kept now. False: it did not run. */
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

/** From when it resolves on nothing is removed, until it is released or its process ends. */
export interface KeptObjects {
  /** Throws once the connection that keeps them broke: what was read since may have been removed. */
  check(): Promise<void>;
  release(): Promise<void>;
}

/** Waits for rounds that are under way. */
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
