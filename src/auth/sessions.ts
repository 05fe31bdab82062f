/**
 * Sessions: up to 30 days, ended by logout, revocation, or a change of password. What a session shows is a bearer
 * token good for an hour; the refresh token (a cookie of the console) gets it a new one. Tokens overlap: two pages of
 * one browser do not end each other's.
 */
import { isForeignKeyOf, type Tx } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import { newId, type SessionId, type UserId } from '../lib/ids.ts';
import { findSessionByRefresh, insertSession, insertSessionToken } from './store.ts';
import { hashToken, newToken, REFRESH_PREFIX, SESSION_PREFIX, tokenPrefix } from './tokens.ts';

export const SESSION_TOKEN_LIFETIME_S = 3_600;
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

export async function openSession(tx: Tx, user_id: UserId, caller: Caller): Promise<OpenedSession> {
  const session_id = newId('sess');
  const refresh_token = newToken(REFRESH_PREFIX);
  const ends_at = new Date(Date.now() + SESSION_LIFETIME_S * 1000);
  await insertSession(tx, {
    id: session_id,
    user_id,
    refresh_hash: hashToken(refresh_token),
    ...caller,
    ends_at,
  });
  return { session_id, refresh_token, ...(await issueToken(tx, session_id, ends_at)) };
}

async function issueToken(tx: Tx, session_id: SessionId, ends_at: Date) {
  const session_token = newToken(SESSION_PREFIX);
  const expires_at = new Date(Math.min(Date.now() + SESSION_TOKEN_LIFETIME_S * 1000, ends_at.getTime()));
  await insertSessionToken(tx, hashToken(session_token), session_id, expires_at);
  return { session_token, expires_at };
}

/** A new bearer token for the session of a refresh token. @throws AppError UNAUTHENTICATED */
export async function refreshSession(tx: Tx, refresh_token: string) {
  if (tokenPrefix(refresh_token) !== REFRESH_PREFIX) throw new AppError('UNAUTHENTICATED');
  const session = await findSessionByRefresh(tx, hashToken(refresh_token));
  if (!session) throw ended();
  return issueToken(tx, session.id, session.ends_at).catch((error: unknown) => {
    // Since it was looked up.
    throw isForeignKeyOf(error, 'session_tokens') ? ended(error) : error;
  });
}

const ended = (cause?: unknown) =>
  new AppError('UNAUTHENTICATED', { message: 'The session has ended. Log in again.', cause });
