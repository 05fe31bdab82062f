/**
 * The lockout shared by login, sudo and every other place that takes a password, by e-mail address, whether or not
 * there is an account.
 *
 * An attempt is counted as a failure before its password is looked at, and given back when it was right: however
 * many come at once, at most five are looked at. Failures 1 to 4 are 401; the 5th in a row locks for 15 minutes,
 * doubling with each further lock up to a day, and is 423; so is everything while locked, which counts for nothing.
 *
 * `failures` beyond five says that some were refused while five were undecided; those are not counted. Five that
 * nobody decides (the process ended) keep the address shut for a minute, then one is let through at a time.
 */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import { appendPrivate } from '../events/append.ts';
import { rfc3339 } from '../lib/clock.ts';
import { AppError } from '../lib/errors.ts';
import { findUserByEmail } from './store.ts';

export const MAX_FAILURES = 5;
const FIRST_LOCK_S = 15 * 60;
const LONGEST_LOCK_S = 24 * 3600;
/** No verify takes as long. */
const UNDECIDED_S = 60;
const REFUSED = MAX_FAILURES + 1;

export interface Attempt {
  readonly email_key: string;
  /** Which failure in a row this one would be. */
  readonly number: number;
}

/** How long the n-th lock in a row lasts, n from 1. */
export function lockSeconds(n: number): number {
  return Math.min(LONGEST_LOCK_S, FIRST_LOCK_S * 2 ** Math.min(n - 1, 20));
}

/** @throws AppError ACCOUNT_LOCKED while locked, or while five attempts are undecided */
export async function beginAttempt(tx: Tx, email: string): Promise<Attempt> {
  const email_key = email.toLowerCase();
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
  const row = rows[0];
  if (!row) throw new Error('lockouts: no row');
  if (row.locked_s !== null) throw locked(row.locked_s);
  if (row.failures === REFUSED) throw locked(UNDECIDED_S);
  return { email_key, number: row.failures };
}

/** The attempt was right: everything is forgotten. */
export async function succeed(tx: Tx, { email_key }: Attempt): Promise<void> {
  await tx.deleteFrom('lockouts').where('email_key', '=', email_key).execute();
}

/** The attempt was neither right nor wrong (the second factor is still to come): it is given back. */
export async function withdraw(tx: Tx, { email_key }: Attempt): Promise<void> {
  await tx
    .updateTable('lockouts')
    .set({ failures: sql`greatest(least(failures, ${MAX_FAILURES}) - 1, 0)` })
    .where('email_key', '=', email_key)
    .where('locked_until', 'is', null)
    .execute();
}

/**
 * The attempt was wrong. The fifth locks, which the account is told. Answers the error to throw.
 * @param ip where it came from, if that is known
 */
export async function fail(
  tx: Tx,
  attempt: Attempt,
  otherwise: AppError,
  ip: string | null,
): Promise<AppError> {
  if (attempt.number < MAX_FAILURES) return otherwise;
  const row = await tx
    .selectFrom('lockouts')
    .select(['locks'])
    .where('email_key', '=', attempt.email_key)
    .forUpdate()
    .executeTakeFirst();
  // Another attempt was right meanwhile, and has ended the row.
  if (!row) return otherwise;
  const locks = row.locks + 1;
  const seconds = lockSeconds(locks);
  await tx
    .updateTable('lockouts')
    .set({
      locks,
      locked_until: sql<Date>`now() + make_interval(secs => ${seconds})`,
      updated_at: sql`now()`,
    })
    .where('email_key', '=', attempt.email_key)
    .execute();
  await tellOfLock(tx, attempt, seconds, ip);
  return locked(seconds);
}

async function tellOfLock(tx: Tx, { email_key }: Attempt, seconds: number, ip: string | null): Promise<void> {
  const user = await findUserByEmail(tx, email_key);
  if (!user) return;
  const locked_until = rfc3339(new Date(Date.now() + seconds * 1000));
  await appendPrivate(tx, {
    type: 'account.locked',
    org_id: null,
    user_id: user.id,
    data: { locked_until, ...(ip === null ? {} : { ip }) },
    actor: 'system',
  });
}

/** Ends a lock: a password reset by mail, or the operator. Answers whether there was a row. */
export async function unlock(tx: Tx, email: string): Promise<boolean> {
  const gone = await tx
    .deleteFrom('lockouts')
    .where('email_key', '=', email.toLowerCase())
    .executeTakeFirst();
  return gone.numDeletedRows > 0n;
}

/** Whether the address is locked now; the error to answer with if so. Counts nothing. */
export async function lockedNow(tx: Tx, email: string): Promise<AppError | null> {
  const { rows } = await sql<{ locked_s: number }>`
    select extract(epoch from locked_until - now())::float8 as locked_s from lockouts
    where email_key = ${email.toLowerCase()} and locked_until > now()`.execute(tx);
  return rows[0] ? locked(rows[0].locked_s) : null;
}

function locked(seconds: number): AppError {
  return new AppError('ACCOUNT_LOCKED', { retry_after_seconds: Math.max(1, Math.ceil(seconds)) });
}
