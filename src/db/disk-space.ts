/**
 * Whether the database's disk has room. Most small updates go into pages and logs that are there already, so a full disk
 * goes unnoticed until something grows. So the question is answered by a temporary file of PostgreSQL's that grows: what
 * does not fit into `work_mem` goes into one. It leaves nothing behind and writes no log, which on a full disk would end
 * the server.
 */
import { sql } from 'kysely';
import { type Db, hasFailedForSpace, isFull, transaction } from './pool.ts';

const ASK_EVERY_MS = 5_000;
/** Rows of a kilobyte. */
const PROBE_ROWS = 1_024;

const asked = new WeakMap<Db, { readonly at_ms: number; readonly full: Promise<boolean> }>();

/** As of a few seconds ago at most, however often it is asked; never rejects. */
export async function isDiskFull(db: Db): Promise<boolean> {
  if (hasFailedForSpace(db)) return true;
  const now_ms = performance.now();
  const last = asked.get(db);
  if (last && now_ms - last.at_ms < ASK_EVERY_MS) return last.full;
  const full = tryToGrow(db);
  asked.set(db, { at_ms: now_ms, full });
  return full;
}

async function tryToGrow(db: Db): Promise<boolean> {
  try {
    await transaction(db, async (tx) => {
      await sql`select set_config('work_mem', '64kB', true), set_config('statement_timeout', '2s', true)`.execute(
        tx,
      );
      await sql`
        with grown as materialized (select repeat('x', 1000) as row from generate_series(1, ${sql.lit(PROBE_ROWS)}))
        select count(row) from grown`.execute(tx);
    });
    return false;
  } catch (error) {
    // Anything else says nothing about room; a database that is away is found to be by others.
    return isFull(error);
  }
}
