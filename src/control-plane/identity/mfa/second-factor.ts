/** The second factor of a login, after the password was right. */
import type { AuthenticationResponseJSON } from '@simplewebauthn/server';
import { AppError } from '../../../shared/errors.ts';
import type { MfaFactorId, UserId } from '../../../shared/ids.ts';
import type { Tx } from '../../db/pool.ts';
import type { FactorVerdict } from '../login.ts';
import { hashRecoveryCode, matchingStep } from './codes.ts';
import type { MfaContext } from './model.ts';
import { isSecondFactor } from './passkey-login.ts';
import { confirmedFactors, takeRecoveryCode, useStep } from './store.ts';

/** At most one of them. */
export interface GivenFactor {
  readonly totp_code?: string | undefined;
  readonly recovery_code?: string | undefined;
  readonly webauthn?: AuthenticationResponseJSON | undefined;
}

/** Call it before the password is verified. @throws AppError INVALID_REQUEST if there are several */
export function requireOneFactor({ totp_code, recovery_code, webauthn }: GivenFactor): void {
  const given = [totp_code, recovery_code, webauthn].filter((each) => each !== undefined);
  if (given.length < 2) return;
  throw new AppError('INVALID_REQUEST', { message: 'Send one of totp_code, recovery_code and webauthn.' });
}

/**
 * Verifies and consumes the factor: a code, a recovery code or a response is right only once, even among concurrent
 * requests. Each step is one statement, so `db` may be the pool. A transaction must commit after `wrong` too, because the
 * attempt may have consumed a challenge.
 */
export async function verifySecondFactor(
  context: MfaContext & { readonly db: Tx },
  user_id: UserId,
  given: GivenFactor,
): Promise<FactorVerdict> {
  requireOneFactor(given);
  const { db } = context;
  const factors = await confirmedFactors(db, user_id);
  if (factors.length === 0) return 'not_needed';
  const { totp_code, recovery_code, webauthn } = given;
  let right: boolean;
  if (totp_code !== undefined) right = await useCode(db, context, factors, totp_code);
  else if (recovery_code !== undefined)
    right = await takeRecoveryCode(db, user_id, hashRecoveryCode(recovery_code));
  else if (webauthn !== undefined) right = await isSecondFactor(db, context, user_id, webauthn);
  else return 'missing';
  return right ? 'right' : 'wrong';
}

interface ConfirmedFactor {
  readonly id: MfaFactorId;
  readonly secret: Buffer | null;
}

async function useCode(
  tx: Tx,
  context: MfaContext,
  factors: readonly ConfirmedFactor[],
  code: string,
): Promise<boolean> {
  for (const { id, secret } of factors) {
    if (secret === null) continue;
    const step = matchingStep(openSecret(context, id, secret), code, context.now?.() ?? Date.now());
    if (step !== null && (await useStep(tx, id, step))) return true;
  }
  return false;
}

/** The TOTP secret of a factor, base32. */
export function openSecret(context: Pick<MfaContext, 'factors'>, id: MfaFactorId, sealed: Buffer): string {
  const secret = context.factors.open(sealed, id);
  if (secret === null) throw new Error(`${id}: its secret does not open with the root key`);
  return secret;
}
