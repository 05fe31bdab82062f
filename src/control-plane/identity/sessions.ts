/**
 * Opens and refreshes sessions, and grants them sudo. A session lasts up to 30 days, and ends by logout, revocation or
 * a password change. It has two kinds of tokens:
 *
 * - A bearer token is valid for an hour. Several may be valid at once, so that two pages of one browser do not end each
 *   other's.
 * - A refresh token (a cookie of the console) gets a new bearer token, and is itself replaced (`RefreshTokens`). A
 *   replaced refresh token that is used again after more than ten seconds was copied, so it ends its session.
 */
import { createHmac } from 'node:crypto';
import { AppError } from '../../shared/errors.ts';
import { newId, type SessionId, type UserId } from '../../shared/ids.ts';
import { deriveKey } from '../../shared/seal.ts';
import { type Db, isForeignKeyOf, type Tx, transaction } from '../db/pool.ts';
import { holdProved, verifyAccountPassword } from './accounts.ts';
import { lockSessionOfFamily, replaceRefreshToken, wasReplacedJustNow } from './login-store.ts';
import type { Principal } from './principal.ts';
import { deleteSession, hasSudoGrant, insertSession, insertSessionToken, insertSudoGrant } from './store.ts';
import {
  base62,
  hashToken,
  newToken,
  REFRESH_PREFIX,
  SESSION_PREFIX,
  SUDO_PREFIX,
  tokenOf,
  tokenPrefix,
} from './tokens.ts';

// The refresh tokens of one session: each refresh replaces the token by the next.
//
//   prefix + family (21 characters) + own part (22 characters) + checksum
//
// - All tokens of a session share a family, so that a replaced token of any age is recognised.
// - The next token is derived from the one before and the root key. So a recently replaced token gets the session's current
//   token again, although the database stores only hashes: two pages that refresh at once, or a lost response, do not
//   end the session.

const FAMILY_LENGTH = 21;
const OWN_LENGTH = 22;
/** At most so many are issued while a replaced token is still accepted. */
const MOST_STEPS = 1_000;

export interface RefreshToken {
  readonly token: string;
  readonly token_hash: Buffer;
  readonly family_hash: Buffer;
}

/** The family of a well-formed token. */
export function refreshToken(token: string): RefreshToken {
  const family = familyOf(token);
  return { token, token_hash: hashToken(token), family_hash: hashToken(family) };
}

/** The first of a session. */
export function firstRefreshToken(): RefreshToken {
  return refreshToken(newToken(REFRESH_PREFIX));
}

export class RefreshTokens {
  readonly #key: Buffer;

  constructor(root_key: Uint8Array) {
    this.#key = deriveKey(root_key, 'berth refresh tokens v1');
  }

  next({ token }: RefreshToken): RefreshToken {
    const mac = createHmac('sha256', this.#key).update(token).digest();
    return refreshToken(tokenOf(REFRESH_PREFIX, familyOf(token) + base62(mac, OWN_LENGTH)));
  }

  /** The token with this hash, derived from the given one; null: not derivable, because the root key is another. */
  find(from: RefreshToken, token_hash: Buffer): RefreshToken | null {
    let at = from;
    for (let step = 0; step < MOST_STEPS; step++) {
      at = this.next(at);
      if (at.token_hash.equals(token_hash)) return at;
    }
    return null;
  }
}

function familyOf(token: string): string {
  return token.slice(REFRESH_PREFIX.length, REFRESH_PREFIX.length + FAMILY_LENGTH);
}

const SESSION_TOKEN_LIFETIME_S = 3_600;
export const SESSION_LIFETIME_S = 30 * 86_400;

export interface OpenedSession {
  readonly session_id: SessionId;
  readonly session_token: string;
  readonly refresh_token: string;
  readonly expires_at: Date;
}

export interface Caller {
  readonly ip: string;
  readonly user_agent: string;
}

export async function openSession(
  tx: Tx,
  user_id: UserId,
  caller: Caller,
  lifetime_s = SESSION_LIFETIME_S,
): Promise<OpenedSession> {
  const session_id = newId('sess');
  const { token, token_hash, family_hash } = firstRefreshToken();
  const ends_at = new Date(Date.now() + lifetime_s * 1000);
  const refresh = { refresh_family: family_hash, refresh_hash: token_hash };
  await insertSession(tx, { id: session_id, user_id, ...refresh, ...caller, ends_at });
  return { session_id, refresh_token: token, ...(await issueToken(tx, session_id, ends_at)) };
}

async function issueToken(tx: Tx, session_id: SessionId, ends_at: Date) {
  const session_token = newToken(SESSION_PREFIX);
  const expires_at = new Date(Math.min(Date.now() + SESSION_TOKEN_LIFETIME_S * 1000, ends_at.getTime()));
  await insertSessionToken(tx, hashToken(session_token), session_id, expires_at);
  return { session_token, expires_at };
}

export interface RefreshedSession {
  readonly session_token: string;
  readonly expires_at: Date;
  /** The session's current token; null if it cannot be derived again. */
  readonly refresh_token: string | null;
}

/**
 * A new bearer token for the session of a refresh token, and the next refresh token. `ended` is called in the same
 * transaction if the session ends because a replaced token was reused.
 * @throws AppError UNAUTHENTICATED
 */
export async function refreshSession(
  db: Db,
  tokens: RefreshTokens,
  given: string,
  ended: (tx: Tx, session: { readonly id: SessionId; readonly user_id: UserId }) => Promise<void>,
): Promise<RefreshedSession> {
  if (tokenPrefix(given) !== REFRESH_PREFIX) throw new AppError('UNAUTHENTICATED');
  const shown = refreshToken(given);
  const refreshed = await transaction(db, async (tx) => {
    const session = await lockSessionOfFamily(tx, shown);
    if (!session?.refresh_hash) return null;
    const present = { id: session.id, refresh_hash: session.refresh_hash };
    const taken = await takeToken(tx, tokens, present, shown);
    if (taken) {
      const refresh_token = taken.next?.token ?? null;
      return { ...(await issueToken(tx, session.id, session.ends_at)), refresh_token };
    }
    // Throwing here would roll back the end of the session.
    await deleteSession(tx, session.user_id, session.id);
    await ended(tx, session);
    return null;
  });
  if (refreshed) return refreshed;
  throw new AppError('UNAUTHENTICATED', { message: 'The session has ended. Log in again.' });
}

/** The session's token from now on; null if the given one is no longer accepted. */
async function takeToken(
  tx: Tx,
  tokens: RefreshTokens,
  present: { readonly id: SessionId; readonly refresh_hash: Buffer },
  shown: RefreshToken,
): Promise<{ readonly next: RefreshToken | null } | null> {
  if (shown.token_hash.equals(present.refresh_hash)) {
    const next = tokens.next(shown);
    await replaceRefreshToken(tx, present.id, shown, next);
    return { next };
  }
  if (!(await wasReplacedJustNow(tx, shown))) return null;
  return { next: tokens.find(shown, present.refresh_hash) };
}

// Sudo: a recent password re-verification of one session, five minutes by the database's clock.

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
