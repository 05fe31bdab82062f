/**
 * Checks whether the database's disk has free space. Small updates reuse allocated pages and logs, so they succeed on a
 * full disk. The probe makes PostgreSQL grow a temporary file, by a query whose rows exceed `work_mem`. It leaves nothing
 * behind and writes no WAL, which on a full disk would end the server.
 */
import { sql } from 'kysely';
import { type Db, hasFailedForSpace, isFull, transaction } from './pool.ts';

const ASK_EVERY_MS = 5_000;
/** Each row is one kilobyte. */
const PROBE_ROWS = 1_024;

const asked = new WeakMap<Db, { readonly at_ms: number; readonly full: Promise<boolean> }>();

/** The result may be a few seconds old. Never rejects. */
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
    // Other errors say nothing about space; `ping` finds an unavailable database.
    return isFull(error);
  }
}
