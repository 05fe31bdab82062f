/**
 * Locks an e-mail address, with or without an account, after wrong passwords at login, sudo or another route that takes
 * a password. `noteLogin` notifies an account of a login from a new location.
 *
 * - An attempt is counted as a failure before its password is verified, and a success clears the count. So at most five
 *   concurrent attempts are verified.
 * - Failures 1 to 4 get 401. The fifth in a row gets 423 and locks the address for 15 minutes, twice as long with each
 *   further lock, up to a day. While locked, every attempt gets 423 and is not counted.
 * - While five attempts are undecided, others wait up to 5 s, so that concurrent right passwords all succeed. If the
 *   five are never decided (their process ended), the address is closed for a minute, then takes one attempt at a time.
 */
import { createHash } from 'node:crypto';
import { isIPv4, isIPv6 } from 'node:net';
import { present } from '../../shared/assert.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import type { UserId } from '../../shared/ids.ts';
import { firstGroups } from '../../shared/networks.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import type { Db, Tx } from '../db/pool.ts';
import { appendPrivate } from '../events/append.ts';
import {
  countFailure,
  deleteLockout,
  dropOldestLocations,
  findLockedSeconds,
  keepLocations,
  listLocations,
  lockAddress,
  lockLockout,
  MAX_FAILURES,
  MAX_LOCATIONS,
  otherSessions,
  REFUSED,
  UNDECIDED_S,
  uncountFailure,
} from './login-store.ts';
import type { Caller, OpenedSession } from './sessions.ts';
import { findUserByEmail } from './store.ts';

const FIRST_LOCK_S = 15 * 60;
const LONGEST_LOCK_S = 24 * 3600;
/** How long to wait for undecided attempts: many verifications. */
const LONGEST_WAIT_MS = 5_000;

export interface Attempt {
  readonly email_key: string;
  /** The number of failures in a row if this attempt fails. */
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

/** The password was right: clears all failures. */
export async function succeed(tx: Tx, { email_key }: Attempt): Promise<void> {
  await deleteLockout(tx, email_key);
}

/** Takes back an attempt that is not decided yet (the second factor is missing). */
export async function withdraw(tx: Tx, { email_key }: Attempt): Promise<void> {
  await uncountFailure(tx, email_key);
}

/**
 * The password was wrong. The fifth failure locks the address and notifies the account. Returns the error to throw.
 * @param ip of the caller, if known
 */
export async function fail(
  tx: Tx,
  attempt: Attempt,
  otherwise: AppError,
  ip: string | null,
): Promise<AppError> {
  if (attempt.number < MAX_FAILURES) return otherwise;
  const row = await lockLockout(tx, attempt.email_key);
  // A concurrent attempt was right and has deleted the row.
  if (!row) return otherwise;
  const locks = row.locks + 1;
  const seconds = lockSeconds(locks);
  await lockAddress(tx, attempt.email_key, locks, seconds);
  await reportLock(tx, attempt, seconds, ip);
  return locked(seconds);
}

async function reportLock(tx: Tx, { email_key }: Attempt, seconds: number, ip: string | null): Promise<void> {
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

/** Ends a lock, for a password reset by mail or the operator. Returns whether a row existed. */
export async function unlock(tx: Tx, email: string): Promise<boolean> {
  return deleteLockout(tx, email.toLowerCase());
}

/** Returns the error to throw if the address is locked. Counts nothing. */
export async function lockedNow(tx: Tx, email: string): Promise<AppError | null> {
  const locked_s = await findLockedSeconds(tx, email.toLowerCase());
  return locked_s === undefined ? null : locked(locked_s);
}

function locked(seconds: number): AppError {
  return new AppError('ACCOUNT_LOCKED', { retry_after_seconds: Math.max(1, Math.ceil(seconds)) });
}

/**
 * Records the location that a person logs in from: a network prefix (IPv4 /24, IPv6 /48) and a browser without version numbers,
 * stored as a hash. A login from an unknown location raises a notification, except the account's first login. Call it in the
 * transaction that opens the session.
 */
export async function noteLogin(
  tx: Tx,
  user_id: UserId,
  { session_id }: Pick<OpenedSession, 'session_id'>,
  caller: Caller,
): Promise<void> {
  const kept = await listLocations(tx, user_id);
  // Open sessions may be older than this table.
  const sessions = kept.length > 0 ? [] : await otherSessions(tx, user_id, session_id);
  const from_sessions = sessions.map((each) => locationOf(user_id, each));
  const known = [...kept, ...from_sessions];
  const location = locationOf(user_id, caller);
  const is_new = known.length > 0 && !known.some((each) => each.equals(location));
  const inserted = await keepLocations(tx, user_id, [location, ...from_sessions]);
  if (kept.length >= MAX_LOCATIONS) await dropOldestLocations(tx, user_id);
  if (!is_new || !inserted) return;
  const { ip, user_agent } = caller;
  await appendPrivate(tx, {
    type: 'login.new_place',
    org_id: null,
    user_id,
    data: { ip, user_agent, session_id },
    actor: user_id,
  });
}

export function locationOf(user_id: UserId, { ip, user_agent }: Caller): Buffer {
  const agent = user_agent.replace(/\d[\d._]*/g, '');
  return createHash('sha256')
    .update(JSON.stringify([user_id, networkOf(ip), agent]))
    .digest();
}

function networkOf(ip: string): string {
  const v4 = ip.replace(/^::ffff:/i, '');
  if (isIPv4(v4)) return v4.split('.').slice(0, 3).join('.');
  if (!isIPv6(ip)) return ip;
  return firstGroups(ip, 3);
}
