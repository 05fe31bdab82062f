/** SQL of second factors, recovery codes and WebAuthn challenges. */
import { sql } from 'kysely';
import type { MfaFactorId, UserId } from '../../../shared/ids.ts';
import type { StoredCredential } from '../../db/column-types.ts';
import type { Tx } from '../../db/pool.ts';
import {
  CHALLENGE_LIFETIME_S,
  type FactorType,
  MAX_WRONG_CODES,
  UNCONFIRMED_LIFETIME_MINUTES,
} from './model.ts';

/** Serialises changes to one account's factors. Undefined if the account no longer exists. */
export async function lockAccount(tx: Tx, user_id: UserId) {
  return tx
    .selectFrom('users')
    .select(['email', 'name'])
    .where('id', '=', user_id)
    .forNoKeyUpdate()
    .executeTakeFirst();
}

// Factors ------------------------------------------------------------------------------------------------------

export interface NewFactor {
  readonly id: MfaFactorId;
  readonly user_id: UserId;
  readonly type: FactorType;
  readonly name: string;
  /** Sealed. */
  readonly secret: Buffer | null;
}

export async function insertFactor(tx: Tx, factor: NewFactor): Promise<void> {
  await tx.insertInto('mfa_factors').values(factor).execute();
}

export async function findFactor(tx: Tx, user_id: UserId, id: MfaFactorId) {
  return tx
    .selectFrom('mfa_factors')
    .selectAll()
    .where('id', '=', id)
    .where('user_id', '=', user_id)
    .executeTakeFirst();
}

export async function listFactors(tx: Tx, user_id: UserId, before: string | null, limit: number) {
  return tx
    .selectFrom('mfa_factors')
    .select(['id', 'type', 'name', 'confirmed_at', 'created_at', 'last_used_at'])
    .where('user_id', '=', user_id)
    .$if(before !== null, (query) => query.where('id', '<', before as MfaFactorId))
    .orderBy('id', 'desc')
    .limit(limit)
    .execute();
}

export async function countFactors(tx: Tx, user_id: UserId): Promise<number> {
  const row = await tx
    .selectFrom('mfa_factors')
    .select((eb) => eb.fn.countAll<number>().as('n'))
    .where('user_id', '=', user_id)
    .executeTakeFirstOrThrow();
  return row.n;
}

/** The confirmed factors of an account, oldest first. */
export async function confirmedFactors(tx: Tx, user_id: UserId) {
  return tx
    .selectFrom('mfa_factors')
    .select(['id', 'type', 'secret', 'credential'])
    .where('user_id', '=', user_id)
    .where('confirmed_at', 'is not', null)
    .orderBy('id')
    .execute();
}

/** The confirmed factor of any account with this WebAuthn credential. */
export async function findFactorByCredential(tx: Tx, credential_id: string) {
  return tx
    .selectFrom('mfa_factors')
    .select(['id', 'user_id', 'credential'])
    .where(sql<string>`credential ->> 'id'`, '=', credential_id)
    .where('confirmed_at', 'is not', null)
    .executeTakeFirst();
}

/** The confirmed WebAuthn credentials of the account with this address. */
export async function findCredentialsByEmail(tx: Tx, email_key: string) {
  const rows = await tx
    .selectFrom('mfa_factors as f')
    .innerJoin('users as u', 'u.id', 'f.user_id')
    .select(['f.user_id', 'f.credential'])
    .where('u.email_key', '=', email_key)
    .where('f.type', '=', 'webauthn')
    .where('f.confirmed_at', 'is not', null)
    .orderBy('f.id')
    .execute();
  return rows.flatMap(({ user_id, credential }) => (credential === null ? [] : [{ user_id, credential }]));
}

/**
 * Counts a try to confirm a TOTP factor before its code is verified. Returns the number of tries, or null if no more are
 * allowed. An unconfirmed factor has accepted no step yet, so `last_step` holds the number of tries, negated.
 */
export async function countTry(tx: Tx, user_id: UserId, id: MfaFactorId): Promise<number | null> {
  const row = await tx
    .updateTable('mfa_factors')
    .set({ last_step: sql<number>`coalesce(last_step, 0) - 1` })
    .where('id', '=', id)
    .where('user_id', '=', user_id)
    .where('confirmed_at', 'is', null)
    .where(sql<number>`coalesce(last_step, 0)`, '>', -MAX_WRONG_CODES)
    .returning('last_step')
    .executeTakeFirst();
  return row?.last_step == null ? null : -row.last_step;
}

export interface Confirmation {
  /** TOTP: the step of the confirming code, which is thereby used. */
  readonly last_step: number | null;
  readonly credential: StoredCredential | null;
}

/** Undefined if no such unconfirmed factor exists. @throws unique violation `mfa_factors_credential` */
export async function confirmFactorRow(tx: Tx, user_id: UserId, id: MfaFactorId, by: Confirmation) {
  return tx
    .updateTable('mfa_factors')
    .set({
      confirmed_at: sql<Date>`now()`,
      last_step: by.last_step,
      credential: by.credential && JSON.stringify(by.credential),
    })
    .where('id', '=', id)
    .where('user_id', '=', user_id)
    .where('confirmed_at', 'is', null)
    .returning(['type', 'name'])
    .executeTakeFirst();
}

/** Consumes a time step and all earlier ones. False if it was used before. */
export async function useStep(tx: Tx, id: MfaFactorId, step: number): Promise<boolean> {
  const done = await tx
    .updateTable('mfa_factors')
    .set({ last_step: step, last_used_at: sql<Date>`now()` })
    .where('id', '=', id)
    .where('confirmed_at', 'is not', null)
    .where((eb) => eb.or([eb('last_step', 'is', null), eb('last_step', '<', step)]))
    .executeTakeFirst();
  return done.numUpdatedRows > 0n;
}

/**
 * Stores a signature counter. False unless it has risen; authenticators without a counter always report 0
 * (WebAuthn L3, section 6.1.1).
 */
export async function useCounter(tx: Tx, id: MfaFactorId, counter: number): Promise<boolean> {
  const before = sql<number>`(credential ->> 'counter')::bigint`;
  const done = await tx
    .updateTable('mfa_factors')
    .set({
      credential: sql<string>`jsonb_set(credential, '{counter}', to_jsonb(${counter}::bigint))`,
      last_used_at: sql<Date>`now()`,
    })
    .where('id', '=', id)
    .where('confirmed_at', 'is not', null)
    .where((eb) => (counter === 0 ? eb(before, '=', 0) : eb(before, '<', counter)))
    .executeTakeFirst();
  return done.numUpdatedRows > 0n;
}

/** Deletes all factors of an account, confirmed or not. */
export async function deleteFactors(tx: Tx, user_id: UserId) {
  return tx
    .deleteFrom('mfa_factors')
    .where('user_id', '=', user_id)
    .returning(['id', 'type', 'name', 'confirmed_at'])
    .execute();
}

export async function deleteFactor(tx: Tx, user_id: UserId, id: MfaFactorId) {
  return tx
    .deleteFrom('mfa_factors')
    .where('id', '=', id)
    .where('user_id', '=', user_id)
    .returning(['type', 'name', 'confirmed_at'])
    .executeTakeFirst();
}

/** Deletes a factor unless it has been confirmed. */
export async function deleteUnconfirmedFactor(tx: Tx, user_id: UserId, id: MfaFactorId): Promise<void> {
  await tx
    .deleteFrom('mfa_factors')
    .where('id', '=', id)
    .where('user_id', '=', user_id)
    .where('confirmed_at', 'is', null)
    .execute();
}

/** Deletes the factors that were not confirmed in time, of one account or of all. */
export async function sweepUnconfirmedFactors(tx: Tx, user_id: UserId | null = null): Promise<void> {
  await tx
    .deleteFrom('mfa_factors')
    .where('confirmed_at', 'is', null)
    .where('created_at', '<', sql<Date>`now() - make_interval(mins => ${UNCONFIRMED_LIFETIME_MINUTES})`)
    .$if(user_id !== null, (query) => query.where('user_id', '=', user_id as UserId))
    .execute();
}

// Recovery codes -----------------------------------------------------------------------------------------------

export async function insertRecoveryCodes(tx: Tx, user_id: UserId, hashes: readonly Buffer[]): Promise<void> {
  await tx
    .insertInto('recovery_codes')
    .values(hashes.map((code_hash) => ({ user_id, code_hash })))
    .execute();
}

export async function countRecoveryCodes(tx: Tx, user_id: UserId): Promise<number> {
  const row = await tx
    .selectFrom('recovery_codes')
    .select((eb) => eb.fn.countAll<number>().as('n'))
    .where('user_id', '=', user_id)
    .executeTakeFirstOrThrow();
  return row.n;
}

/** Consumes a recovery code. False if the account does not have it. */
export async function takeRecoveryCode(tx: Tx, user_id: UserId, code_hash: Buffer): Promise<boolean> {
  const gone = await tx
    .deleteFrom('recovery_codes')
    .where('user_id', '=', user_id)
    .where('code_hash', '=', code_hash)
    .executeTakeFirst();
  return gone.numDeletedRows > 0n;
}

export async function deleteRecoveryCodes(tx: Tx, user_id: UserId): Promise<void> {
  await tx.deleteFrom('recovery_codes').where('user_id', '=', user_id).execute();
}

// WebAuthn challenges ------------------------------------------------------------------------------------------

export type ChallengePurpose = 'register' | 'login';

/** `user_id` null: any account may respond. */
export async function insertChallenge(
  tx: Tx,
  challenge: string,
  purpose: ChallengePurpose,
  user_id: UserId | null,
): Promise<void> {
  const expires_at = sql<Date>`clock_timestamp() + make_interval(secs => ${CHALLENGE_LIFETIME_S})`;
  await tx.insertInto('webauthn_challenges').values({ challenge, purpose, user_id, expires_at }).execute();
}

/** Consumes a live challenge; undefined if there is none. */
export async function takeChallenge(tx: Tx, challenge: string, purpose: ChallengePurpose) {
  return tx
    .deleteFrom('webauthn_challenges')
    .where('challenge', '=', challenge)
    .where('purpose', '=', purpose)
    .where('expires_at', '>', sql<Date>`clock_timestamp()`)
    .returning('user_id')
    .executeTakeFirst();
}
