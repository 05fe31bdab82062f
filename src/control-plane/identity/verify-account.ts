/** Checks the password of an account that is logged in, with the lockout of logins. */
import { AppError } from '../../shared/errors.ts';
import type { UserId } from '../../shared/ids.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { type Attempt, beginAttempt, fail, lockedNow, succeed, withdraw } from './lockout.ts';
import { verifyPassword } from './passwords.ts';
import { findUser, lockUser } from './store.ts';

/** Verifies the password of an attempt; takes the attempt back if too many are running. @throws AppError UNAVAILABLE */
export async function checkPassword(
  db: Db,
  attempt: Attempt,
  stored: string | null,
  password: string,
): Promise<boolean> {
  return verifyPassword(stored, password).catch(async (error: unknown) => {
    await withdraw(db, attempt);
    throw error;
  });
}

/** Checks the lock before a rate limit can hide it. @throws AppError ACCOUNT_LOCKED */
export async function refuseWhileLocked(db: Db, user_id: UserId): Promise<void> {
  const user = await findUser(db, user_id);
  const locked = user && (await lockedNow(db, user.email));
  if (locked) throw locked;
}

const NO_PASSWORD = 'This account has no password. It logs in at the OpenID provider.';

/**
 * Re-verifies the password of an account under its lockout; the notification of a lock names `ip`. Returns the hash that
 * the password matched. @throws AppError UNAUTHENTICATED, ACCOUNT_LOCKED; FORBIDDEN without a password
 */
export async function verifyAccountPassword(
  db: Db,
  user_id: UserId,
  password: string,
  ip: string,
): Promise<string> {
  const user = await findUser(db, user_id);
  if (!user) throw new AppError('UNAUTHENTICATED');
  const { password_hash } = user;
  if (password_hash === null) throw new AppError('FORBIDDEN', { message: NO_PASSWORD });
  const attempt = await beginAttempt(db, user.email);
  if (!(await checkPassword(db, attempt, password_hash, password))) {
    const wrong = new AppError('UNAUTHENTICATED', { message: 'The password is wrong.' });
    throw await transaction(db, (tx) => fail(tx, attempt, wrong, ip));
  }
  await succeed(db, attempt);
  return password_hash;
}

/**
 * Locks the user whose password was verified against the hash `proved_by`.
 * @throws AppError UNAUTHENTICATED if the hash has changed since
 */
export async function holdProved(tx: Tx, user_id: UserId, proved_by: string) {
  await lockUser(tx, user_id);
  const user = await findUser(tx, user_id);
  if (!user) throw new AppError('UNAUTHENTICATED');
  if (user.password_hash !== proved_by) {
    throw new AppError('UNAUTHENTICATED', { message: 'The password was changed meanwhile.' });
  }
  return user;
}
