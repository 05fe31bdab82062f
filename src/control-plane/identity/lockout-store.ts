/** Failed attempts per e-mail address. `lockout.ts` has the rules. */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';

export const MAX_FAILURES = 5;
/** {@link countFailure} returns this while five attempts are undecided. */
export const REFUSED = MAX_FAILURES + 1;
/** Longer than any password verification. */
export const UNDECIDED_S = 60;

/** `failures`: in a row, with this one. `locked_s`: how long the address stays locked; null: it is not locked. */
export async function countFailure(
  tx: Tx,
  email_key: string,
): Promise<{ failures: number; locked_s: number | null } | undefined> {
  const now_locked = sql`l.locked_until > now()`;
  const undecided = sql`l.locked_until is null and l.failures >= ${MAX_FAILURES}
    and l.updated_at > now() - make_interval(secs => ${UNDECIDED_S})`;
  const { rows } = await sql<{ failures: number; locked_s: number | null }>`
    insert into lockouts as l (email_key, failures) values (${email_key}, 1)
    on conflict (email_key) do update set
      failures = case when ${now_locked} then l.failures
                      when l.locked_until is not null then 1
                      when ${undecided} then ${REFUSED}
                      else least(l.failures + 1, ${MAX_FAILURES}) end,
      locked_until = case when ${now_locked} then l.locked_until end,
      updated_at = case when ${undecided} then l.updated_at else now() end
    returning failures, extract(epoch from locked_until - now())::float8 as locked_s`.execute(tx);
  return rows[0];
}

/** Takes one failure back. */
export async function uncountFailure(tx: Tx, email_key: string): Promise<void> {
  await tx
    .updateTable('lockouts')
    .set({ failures: sql`greatest(least(failures, ${MAX_FAILURES}) - 1, 0)` })
    .where('email_key', '=', email_key)
    .where('locked_until', 'is', null)
    .execute();
}

/** How often the address was locked before; undefined without a row. Locks the row until the transaction ends. */
export async function lockLockout(tx: Tx, email_key: string): Promise<{ locks: number } | undefined> {
  return tx
    .selectFrom('lockouts')
    .select(['locks'])
    .where('email_key', '=', email_key)
    .forUpdate()
    .executeTakeFirst();
}

export async function lockAddress(tx: Tx, email_key: string, locks: number, seconds: number): Promise<void> {
  await tx
    .updateTable('lockouts')
    .set({
      locks,
      locked_until: sql<Date>`now() + make_interval(secs => ${seconds})`,
      updated_at: sql`now()`,
    })
    .where('email_key', '=', email_key)
    .execute();
}

/** Returns whether a row existed. */
export async function deleteLockout(tx: Tx, email_key: string): Promise<boolean> {
  const gone = await tx.deleteFrom('lockouts').where('email_key', '=', email_key).executeTakeFirst();
  return gone.numDeletedRows > 0n;
}

/** How long the address stays locked; undefined: it is not locked. */
export async function findLockedSeconds(tx: Tx, email_key: string): Promise<number | undefined> {
  const { rows } = await sql<{ locked_s: number }>`
    select extract(epoch from locked_until - now())::float8 as locked_s from lockouts
    where email_key = ${email_key} and locked_until > now()`.execute(tx);
  return rows[0]?.locked_s;
}
