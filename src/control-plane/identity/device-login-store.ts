/** Logins that a program asks for and a person confirms in a browser. A row lives for ten minutes, and opens one session. */
import { sql } from 'kysely';
import type { SessionId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

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
