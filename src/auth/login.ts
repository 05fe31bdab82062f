import type { Db } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import { newId } from '../lib/ids.ts';
import { PasswordsBusyError, verifyPassword } from './passwords.ts';
import { findUserByEmail, insertSession } from './store.ts';
import { hashToken, newToken, SESSION_PREFIX } from './tokens.ts';

/** A session token is good for one hour. */
export const SESSION_LIFETIME_MS = 3_600_000;

export interface LoginRequest {
  readonly email: string;
  readonly password: string;
  readonly ip: string;
  readonly user_agent: string;
}

/** Opens a session. @throws AppError UNAUTHENTICATED, the same for an unknown address and a wrong password */
export async function login(db: Db, request: LoginRequest) {
  const user = await findUserByEmail(db, request.email);
  const right = await verifyPassword(user?.password_hash ?? null, request.password).catch(
    (error: unknown) => {
      if (error instanceof PasswordsBusyError)
        throw new AppError('UNAVAILABLE', { retry_after_seconds: 1, cause: error });
      throw error;
    },
  );
  if (!user || !right)
    throw new AppError('UNAUTHENTICATED', { message: 'The e-mail address or the password is wrong.' });
  const token = newToken(SESSION_PREFIX);
  const expires_at = new Date(Date.now() + SESSION_LIFETIME_MS);
  await insertSession(db, {
    id: newId('sess'),
    user_id: user.id,
    token_hash: hashToken(token),
    ip: request.ip,
    user_agent: request.user_agent,
    expires_at,
  });
  return { user, session_token: token, expires_at };
}
