/**
 * SQL of four parts of logging in: the (hashed) locations that an account has logged in from, the failed attempts for
 * each e-mail address, the logins that a program asks for and a person confirms, and the refresh tokens of sessions.
 */
import { sql } from 'kysely';
import type { SessionId, UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { RefreshToken } from './sessions.ts';

/** Also the number of sessions examined while no location is stored. */
const MAX_SESSIONS = 100;
export const MAX_LOCATIONS = 500;
const KEPT_DAYS = 365;

export async function listLocations(tx: Tx, user_id: UserId): Promise<Buffer[]> {
  const rows = await tx
    .selectFrom('known_locations')
    .select('location_hash')
    .where('user_id', '=', user_id)
    .execute();
  return rows.map(({ location_hash }) => location_hash);
}

/** Where the account opened its latest other sessions. */
export async function otherSessions(
  tx: Tx,
  user_id: UserId,
  session_id: SessionId,
): Promise<{ ip: string; user_agent: string }[]> {
  return tx
    .selectFrom('sessions')
    .select(['ip', 'user_agent'])
    .where('user_id', '=', user_id)
    .where('id', '!=', session_id)
    .orderBy('id', 'desc')
    .limit(MAX_SESSIONS)
    .execute();
}

/** Deletes all but the newest {@link MAX_LOCATIONS}. */
export async function dropOldestLocations(tx: Tx, user_id: UserId): Promise<void> {
  const newest = tx
    .selectFrom('known_locations')
    .select('location_hash')
    .where('user_id', '=', user_id)
    .orderBy('last_seen_at', 'desc')
    .limit(MAX_LOCATIONS);
  await tx
    .deleteFrom('known_locations')
    .where('user_id', '=', user_id)
    .where('location_hash', 'not in', newest)
    .execute();
}

/** Returns whether the first of them was new: true for only one of several concurrent logins. */
export async function keepLocations(tx: Tx, user_id: UserId, locations: readonly Buffer[]): Promise<boolean> {
  const [location] = locations;
  const unique = new Map(locations.map((each) => [each.toString('hex'), each]));
  const rows = await tx
    .insertInto('known_locations')
    .values([...unique.values()].map((location_hash) => ({ user_id, location_hash })))
    .onConflict((conflict) =>
      conflict.columns(['user_id', 'location_hash']).doUpdateSet({ last_seen_at: sql`now()` }),
    )
    .returning(['location_hash', sql<boolean>`xmax = 0`.as('inserted')])
    .execute();
  return rows.some(({ location_hash, inserted }) => inserted && location?.equals(location_hash) === true);
}

export async function deleteOldLocations(tx: Tx): Promise<void> {
  await tx
    .deleteFrom('known_locations')
    .where('last_seen_at', '<', sql<Date>`now() - make_interval(days => ${KEPT_DAYS})`)
    .execute();
}

// Failed attempts per e-mail address. `lockout.ts` has the rules.

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

// Logins that a program asks for and a person confirms in a browser. A row lives for ten minutes, and opens one session.

const DEVICE_LOGIN_LIFETIME_S = 600;

const SHOWN = ['user_code', 'sudo', 'ip', 'user_agent', 'created_at', 'expires_at'] as const;
const IS_LIVE = sql<boolean>`device_logins.expires_at > now()`;

export interface NewDeviceLogin {
  readonly device_hash: Buffer;
  readonly user_code: string;
  readonly sudo: boolean;
  readonly ip: string;
  readonly user_agent: string;
}

export async function insertDeviceLogin(tx: Tx, login: NewDeviceLogin): Promise<{ expires_at: Date }> {
  const expires_at = sql<Date>`date_trunc('milliseconds', now()) + make_interval(secs => ${DEVICE_LOGIN_LIFETIME_S})`;
  return tx
    .insertInto('device_logins')
    .values({ ...login, expires_at, confirmed_by: null })
    .returning('expires_at')
    .executeTakeFirstOrThrow();
}

/** One that nobody has answered yet. */
export async function findAsked(tx: Tx, user_code: string) {
  return tx
    .selectFrom('device_logins')
    .select(SHOWN)
    .where('user_code', '=', user_code)
    .where('confirmed_by', 'is', null)
    .where(IS_LIVE)
    .executeTakeFirst();
}

/** @returns what was confirmed; undefined: there is none, or it was answered before */
export async function confirmAsked(tx: Tx, user_code: string, confirmed_by: SessionId) {
  return tx
    .updateTable('device_logins')
    .set({ confirmed_by })
    .where('user_code', '=', user_code)
    .where('confirmed_by', 'is', null)
    .where(IS_LIVE)
    .returning(SHOWN)
    .executeTakeFirst();
}

/** @returns what was refused; undefined: there is none, or it was answered before */
export async function deleteAsked(tx: Tx, user_code: string) {
  return tx
    .deleteFrom('device_logins')
    .where('user_code', '=', user_code)
    .where('confirmed_by', 'is', null)
    .where(IS_LIVE)
    .returning(SHOWN)
    .executeTakeFirst();
}

/** With its confirming session while that lives. */
export async function findDeviceLogin(tx: Tx, device_hash: Buffer) {
  return tx
    .selectFrom('device_logins')
    .leftJoin('sessions', (join) =>
      join.onRef('sessions.id', '=', 'device_logins.confirmed_by').on(sql<boolean>`sessions.ends_at > now()`),
    )
    .select(['device_logins.sudo', 'confirmed_by', 'sessions.user_id', 'sessions.ends_at'])
    .where('device_hash', '=', device_hash)
    .where(IS_LIVE)
    .executeTakeFirst();
}

/** False: another request was first, or the confirming session has ended. */
export async function takeConfirmed(tx: Tx, device_hash: Buffer): Promise<boolean> {
  const gone = await tx
    .deleteFrom('device_logins')
    .where('device_hash', '=', device_hash)
    .where('confirmed_by', 'is not', null)
    .executeTakeFirst();
  return gone.numDeletedRows > 0n;
}

/** For the sweep. */
export async function deleteExpiredDeviceLogins(tx: Tx): Promise<void> {
  await tx.deleteFrom('device_logins').where('expires_at', '<', sql<Date>`now()`).execute();
}

// Stores the current refresh token of each session, and the recently replaced ones.

/** How long a replaced token is still accepted. */
export const REPLACED_GRACE_S = 10;

const graceBegan = () => sql<Date>`clock_timestamp() - make_interval(secs => ${REPLACED_GRACE_S})`;

/** The live session of a current or replaced token, locked until the transaction ends. */
export async function lockSessionOfFamily(tx: Tx, { family_hash }: RefreshToken) {
  return tx
    .selectFrom('sessions')
    .select(['id', 'user_id', 'refresh_hash', 'ends_at'])
    .where('refresh_family', '=', family_hash)
    .where('ends_at', '>', sql<Date>`now()`)
    .forNoKeyUpdate()
    .executeTakeFirst();
}

export async function replaceRefreshToken(
  tx: Tx,
  session_id: SessionId,
  { token_hash }: RefreshToken,
  next: RefreshToken,
): Promise<void> {
  await deleteLongReplaced(tx, session_id);
  await tx.insertInto('replaced_refresh_tokens').values({ token_hash, session_id }).execute();
  const change = { refresh_hash: next.token_hash };
  await tx.updateTable('sessions').set(change).where('id', '=', session_id).execute();
}

export async function wasReplacedJustNow(tx: Tx, { token_hash }: RefreshToken): Promise<boolean> {
  const row = await tx
    .selectFrom('replaced_refresh_tokens')
    .select('replaced_at')
    .where('token_hash', '=', token_hash)
    .where('replaced_at', '>', graceBegan())
    .executeTakeFirst();
  return row !== undefined;
}

/** Of one session, or of all. */
export async function deleteLongReplaced(tx: Tx, session_id: SessionId | null = null): Promise<void> {
  await tx
    .deleteFrom('replaced_refresh_tokens')
    .where('replaced_at', '<=', graceBegan())
    .$if(session_id !== null, (query) => query.where('session_id', '=', session_id as SessionId))
    .execute();
}
