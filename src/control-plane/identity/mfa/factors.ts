/**
 * Adds, confirms and removes the second factors of an account, and issues its recovery codes. The account is notified
 * when a factor is confirmed and when a confirmed factor is removed.
 */
import type {
  PublicKeyCredentialCreationOptionsJSON,
  RegistrationResponseJSON,
} from '@simplewebauthn/server';
import { AppError, invalid } from '../../../shared/errors.ts';
import { type MfaFactorId, newId, type UserId } from '../../../shared/ids.ts';
import { requireWithin } from '../../../shared/quotas.ts';
import { type Db, type Tx, violates } from '../../db/pool.ts';
import { appendPrivate } from '../../events/append.ts';
import { type FactorType, MAX_WRONG_CODES, type MfaContext } from './model.ts';
import {
  hashRecoveryCode,
  matchingStep,
  newRecoveryCodes,
  newTotpSecret,
  openSecret,
  otpauthUrl,
} from './second-factor.ts';
import {
  type Confirmation,
  confirmedFactors,
  confirmFactorRow,
  countFactors,
  countRecoveryCodes,
  countTry,
  deleteFactor,
  deleteFactors,
  deleteRecoveryCodes,
  deleteUnconfirmedFactor,
  findFactor,
  insertFactor,
  insertRecoveryCodes,
  lockAccount,
  sweepUnconfirmedFactors,
} from './store.ts';
import { registrationOptions, verifyRegistration } from './webauthn.ts';

interface AddedNames {
  readonly id: MfaFactorId;
  readonly name: string;
}
export type AddedFactor =
  | (AddedNames & { readonly type: 'totp'; readonly secret: string; readonly otpauth_url: string })
  | (AddedNames & { readonly type: 'webauthn'; readonly options: PublicKeyCredentialCreationOptionsJSON });

/** Adds a factor, which must be confirmed within an hour. @throws AppError QUOTA_EXCEEDED; CONFLICT where WebAuthn cannot work */
export async function addFactor(
  tx: Tx,
  context: MfaContext,
  user_id: UserId,
  wanted: { readonly type: FactorType; readonly name: string },
): Promise<AddedFactor> {
  const { type, name } = wanted;
  const account = await lockAccount(tx, user_id);
  if (!account) throw new AppError('UNAUTHENTICATED');
  await sweepUnconfirmedFactors(tx, user_id);
  requireWithin('factors', context.quotas.factors, await countFactors(tx, user_id));
  const id = newId('mfa');
  if (type === 'totp') {
    const secret = newTotpSecret();
    await insertFactor(tx, { id, user_id, type, name, secret: context.factors.seal(secret, id) });
    return { id, type, name, secret, otpauth_url: otpauthUrl(secret, account.email) };
  }
  const options = await registrationOptions(tx, context, user_id, account);
  await insertFactor(tx, { id, user_id, type, name, secret: null });
  return { id, type, name, options };
}

export type FactorAnswer = { readonly code: string } | RegistrationResponseJSON;

/**
 * Verifies the response that confirms a factor. Runs outside of the confirming transaction, because a wrong response
 * counts: the fifth wrong code in a row removes the factor, and any response consumes a WebAuthn challenge.
 * @throws AppError NOT_FOUND, CONFLICT if it is confirmed, INVALID_REQUEST if the response is wrong
 */
export async function proveFactor(
  db: Db,
  context: MfaContext,
  user_id: UserId,
  id: MfaFactorId,
  answer: FactorAnswer,
): Promise<Confirmation> {
  const factor = await findFactor(db, user_id, id);
  if (!factor) throw new AppError('NOT_FOUND');
  if (factor.confirmed_at !== null) throw confirmedAlready();
  if (factor.secret !== null) {
    if (!('code' in answer)) throw invalid('code', 'is required: this factor is an authenticator app');
    const secret = openSecret(context, id, factor.secret);
    return {
      last_step: await proveCode(db, context, { user_id, id, secret }, answer.code),
      credential: null,
    };
  }
  if ('code' in answer)
    throw invalid('code', 'is of an authenticator app; this factor needs the WebAuthn answer');
  const credential = await verifyRegistration(db, context, user_id, answer);
  if (!credential) {
    throw invalid(
      'response',
      'does not answer the options of this factor, or came too late; add the factor again',
    );
  }
  return { last_step: null, credential };
}

/** The time step of a right code. */
async function proveCode(
  db: Db,
  context: MfaContext,
  { user_id, id, secret }: { user_id: UserId; id: MfaFactorId; secret: string },
  code: string,
): Promise<number> {
  const tries = await countTry(db, user_id, id);
  if (tries === null) throw await goneOrConfirmed(db, user_id, id);
  const step = matchingStep(secret, code, context.now?.() ?? Date.now());
  if (step !== null) return step;
  const left = MAX_WRONG_CODES - tries;
  if (left > 0) throw invalid('code', `is wrong; ${left} more ${left === 1 ? 'try' : 'tries'}`);
  await deleteUnconfirmedFactor(db, user_id, id);
  throw invalid('code', `was wrong ${MAX_WRONG_CODES} times; add the factor again`);
}

/**
 * Confirms a factor and notifies the account. Returns new recovery codes if the account has none (its first factor, or
 * all are used), else null: the existing ones stay valid.
 * @param ip of the caller
 * @throws AppError NOT_FOUND if it no longer exists, CONFLICT
 */
export async function confirmFactor(
  tx: Tx,
  user_id: UserId,
  id: MfaFactorId,
  proof: Confirmation,
  ip: string,
): Promise<{ recovery_codes: string[] | null }> {
  await lockAccount(tx, user_id);
  const confirmed = await confirmFactorRow(tx, user_id, id, proof).catch((error: unknown) => {
    if (!violates(error, 'mfa_factors_credential')) throw error;
    throw new AppError('CONFLICT', { message: 'That authenticator is a factor already.' });
  });
  if (!confirmed) throw await goneOrConfirmed(tx, user_id, id);
  const data = { factor: { id, ...confirmed }, ip };
  await appendPrivate(tx, { type: 'mfa.added', org_id: null, user_id, data, actor: user_id });
  if ((await countRecoveryCodes(tx, user_id)) > 0) return { recovery_codes: null };
  const recovery_codes = newRecoveryCodes();
  await insertRecoveryCodes(tx, user_id, recovery_codes.map(hashRecoveryCode));
  return { recovery_codes };
}

export interface RemovedFactor {
  readonly type: FactorType;
  readonly name: string;
}

/** Removes a factor; with the last confirmed one also the recovery codes. @throws AppError NOT_FOUND */
export async function removeFactor(
  tx: Tx,
  user_id: UserId,
  id: MfaFactorId,
  ip: string,
): Promise<RemovedFactor> {
  const account = await lockAccount(tx, user_id);
  const factor = account && (await deleteFactor(tx, user_id, id));
  if (!factor) throw new AppError('NOT_FOUND');
  const rest = await confirmedFactors(tx, user_id);
  if (rest.length === 0) await deleteRecoveryCodes(tx, user_id);
  const { type, name } = factor;
  // An unconfirmed factor protected nothing.
  if (factor.confirmed_at !== null) {
    const data = { factor: { id, type, name }, ip };
    await appendPrivate(tx, { type: 'mfa.removed', org_id: null, user_id, data, actor: user_id });
  }
  return { type, name };
}

/**
 * Removes every factor and recovery code of an account, and notifies the account.
 * @param actor if not the account itself
 * @returns how many confirmed factors there were
 */
export async function removeAllFactors(tx: Tx, user_id: UserId, actor: string): Promise<number> {
  await lockAccount(tx, user_id);
  const removed = await deleteFactors(tx, user_id);
  await deleteRecoveryCodes(tx, user_id);
  const confirmed = removed.filter(({ confirmed_at }) => confirmed_at !== null);
  for (const { id, type, name } of confirmed) {
    const data = { factor: { id, type, name } };
    await appendPrivate(tx, { type: 'mfa.removed', org_id: null, user_id, data, actor });
  }
  return confirmed.length;
}

/** The error for a factor that is no longer unconfirmed. */
async function goneOrConfirmed(tx: Tx, user_id: UserId, id: MfaFactorId): Promise<AppError> {
  const factor = await findFactor(tx, user_id, id);
  return factor?.confirmed_at ? confirmedAlready() : new AppError('NOT_FOUND');
}

function confirmedAlready(): AppError {
  return new AppError('CONFLICT', { message: 'The factor is confirmed already.' });
}
