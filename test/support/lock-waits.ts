/** Forces transactions to overlap: one transaction holds a lock that all others wait for. */
import { sql } from 'kysely';
import type { Db } from '../../src/control-plane/db/pool.ts';
import { until } from './waiting.ts';

/** Resolves once that many connections of this database wait for a lock. */
export async function untilLocksAreWaitedFor(db: Db, connections: number): Promise<void> {
  const enough = async () => {
    const { rows } = await sql`
      select pid from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock'`.execute(db);
    return rows.length === connections;
  };
  await until(`${connections} wait for a lock`, enough);
}

/**
 * Runs all of `starts` up to their write to the outbox, one after the other. None commits before all have done their work or
 * wait for one another.
 */
export async function allBeforeAnyCommits<T>(db: Db, starts: readonly (() => Promise<T>)[]): Promise<T[]> {
  const { under_way } = await db.transaction().execute(async (tx) => {
    await sql`lock table events in exclusive mode`.execute(tx);
    const started: Promise<T>[] = [];
    for (const start of starts) {
      started.push(start());
      await untilLocksAreWaitedFor(db, started.length);
    }
    return { under_way: started };
  });
  return Promise.all(under_way);
}
