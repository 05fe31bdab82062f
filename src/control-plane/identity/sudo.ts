/** Sudo: a recent password re-verification of one session, five minutes by the database's clock. */
import { AppError } from '../../shared/errors.ts';
import type { SessionId, UserId } from '../../shared/ids.ts';
import { type Db, isForeignKeyOf, type Tx } from '../db/pool.ts';
import type { Principal } from './principal.ts';
import { hasSudoGrant, insertSudoGrant } from './store.ts';
import { hashToken, newToken, SUDO_PREFIX, tokenPrefix } from './tokens.ts';
import { holdProved, verifyAccountPassword } from './verify-account.ts';

export const SUDO_LIFETIME_S = 300;

/**
 * Verifies the password for a grant; returns the hash that it matched.
 * @throws AppError UNAUTHENTICATED, ACCOUNT_LOCKED
 */
export async function verifyForSudo(
  db: Db,
  principal: Principal,
  password: string,
  ip: string,
): Promise<string> {
  return verifyAccountPassword(db, sessionOf(principal).user_id, password, ip);
}

/** Grants sudo after a verification against the hash `proved_by`. @throws AppError UNAUTHENTICATED if the hash has changed */
export async function grantSudo(
  tx: Tx,
  principal: Principal,
  proved_by: string,
): Promise<{ token: string; expires_at: Date }> {
  const credential = sessionOf(principal);
  const { id: session_id, user_id } = credential;
  // A new password ends all grants: it either waits for this one, or is visible here.
  await holdProved(tx, user_id, proved_by);
  return grantSudoTo(tx, { session_id, user_id });
}

/** Grants sudo to a session whose user has just logged in at the provider again. @throws AppError UNAUTHENTICATED */
export async function grantSudoTo(
  tx: Tx,
  session: { readonly session_id: SessionId; readonly user_id: UserId },
): Promise<{ token: string; expires_at: Date }> {
  const token = newToken(SUDO_PREFIX);
  const grant = { token_hash: hashToken(token), ...session };
  const expires_at = await insertSudoGrant(tx, grant, SUDO_LIFETIME_S).catch((error: unknown) => {
    // The session ended during the verification.
    throw isForeignKeyOf(error, 'sudo_grants') ? new AppError('UNAUTHENTICATED', { cause: error }) : error;
  });
  return { token, expires_at };
}

export function sessionOf({ credential }: Principal) {
  if (credential.kind === 'session') return credential;
  throw new AppError('UNAUTHENTICATED', {
    message: 'Sudo needs a session; an API key has no password to re-enter.',
  });
}

/** @throws AppError SUDO_REQUIRED unless the token is a live grant of this session */
export async function requireSudo(tx: Tx, principal: Principal, token: string | undefined): Promise<void> {
  const { credential } = principal;
  const found =
    credential.kind === 'session' &&
    token !== undefined &&
    tokenPrefix(token) === SUDO_PREFIX &&
    (await hasSudoGrant(tx, credential.id, hashToken(token)));
  if (!found) throw new AppError('SUDO_REQUIRED');
}
