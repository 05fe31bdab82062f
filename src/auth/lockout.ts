/**
 * The lockout shared by login, sudo and every other place that takes a password, by e-mail address, whether or not
 * there is an account.
 *
 * An attempt is counted as a failure before its password is looked at, and given back when it was right: however
 * many come at once, at most five are looked at. Failures 1 to 4 are 401; the 5th in a row locks for 15 minutes,
 * doubling with each further lock up to a day, and is 423; so is everything while locked, which counts for nothing.
 *
 * While five are undecided others wait for them, some seconds at most: of many right ones at once each is let in.
 * `failures` beyond five says that some waited; those are not counted. Five that nobody decides (the process ended)
 * keep the address shut for a minute, then one is let through at a time.
 */
import type { Db, Tx } from '../db/pool.ts';
import { appendPrivate } from '../events/append.ts';
import { present } from '../lib/assert.ts';
import { backoffMs, pause } from '../lib/backoff.ts';
import { rfc3339 } from '../lib/clock.ts';
import { AppError } from '../lib/errors.ts';
import {
  countFailure,
  deleteLockout,
  findLockedSeconds,
  lockAddress,
  lockLockout,
  MAX_FAILURES,
  REFUSED,
  UNDECIDED_S,
  uncountFailure,
} from './lockout-store.ts';
import { findUserByEmail } from './store.ts';

const FIRST_LOCK_S = 15 * 60;
const LONGEST_LOCK_S = 24 * 3600;
/** For attempts that are undecided: many verifies long. */
const LONGEST_WAIT_MS = 5_000;

export interface Attempt {
  readonly email_key: string;
  /** Which failure in a row this one would be. */
  readonly number: number;
}

/** How long the n-th lock in a row lasts, n from 1. */
export function lockSeconds(n: number): number {
  return Math.min(LONGEST_LOCK_S, FIRST_LOCK_S * 2 ** Math.min(n - 1, 20));
}

/** @throws AppError ACCOUNT_LOCKED while locked, or when five attempts stay undecided */
export async function beginAttempt(db: Db, email: string): Promise<Attempt> {
  const email_key = email.toLowerCase();
  const until_ms = performance.now() + LONGEST_WAIT_MS;
  for (let tries = 0; ; tries++) {
    const row = present(await countFailure(db, email_key), 'count of failures');
    if (row.locked_s !== null) throw locked(row.locked_s);
    if (row.failures !== REFUSED) return { email_key, number: row.failures };
    if (performance.now() > until_ms) throw locked(UNDECIDED_S);
    await pause(backoffMs(tries, 50, 500));
  }
}

/** The attempt was right: everything is forgotten. */
export async function succeed(tx: Tx, { email_key }: Attempt): Promise<void> {
  await deleteLockout(tx, email_key);
}

/** The attempt was neither right nor wrong (the second factor is still to come): it is given back. */
export async function withdraw(tx: Tx, { email_key }: Attempt): Promise<void> {
  await uncountFailure(tx, email_key);
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
  const row = await lockLockout(tx, attempt.email_key);
  // Another attempt was right meanwhile, and has ended the row.
  if (!row) return otherwise;
  const locks = row.locks + 1;
  const seconds = lockSeconds(locks);
  await lockAddress(tx, attempt.email_key, locks, seconds);
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
  return deleteLockout(tx, email.toLowerCase());
}

/** Whether the address is locked now; the error to answer with if so. Counts nothing. */
export async function lockedNow(tx: Tx, email: string): Promise<AppError | null> {
  const locked_s = await findLockedSeconds(tx, email.toLowerCase());
  return locked_s === undefined ? null : locked(locked_s);
}

function locked(seconds: number): AppError {
  return new AppError('ACCOUNT_LOCKED', { retry_after_seconds: Math.max(1, Math.ceil(seconds)) });
}
