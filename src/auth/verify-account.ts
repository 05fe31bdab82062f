import { type Db, transaction } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import type { UserId } from '../lib/ids.ts';
import { type Attempt, beginAttempt, fail, succeed } from './lockout.ts';
import { PasswordsBusyError, verifyPassword } from './passwords.ts';
import { findUser } from './store.ts';

/** The bounded verify; @throws AppError UNAVAILABLE when too many wait for it */
export async function checkPassword(stored: string | null, password: string): Promise<boolean> {
  try {
    return await verifyPassword(stored, password);
  } catch (error) {
    if (error instanceof PasswordsBusyError)
      throw new AppError('UNAVAILABLE', { retry_after_seconds: 1, cause: error });
    throw error;
  }
}

/** Counts a wrong password or factor, and throws what it comes to. */
export async function failAttempt(db: Db, attempt: Attempt, otherwise: AppError): Promise<never> {
  const { error } = await transaction(db, (tx) => fail(tx, attempt, otherwise));
  throw error;
}

/** Re-verifies the password of an account, under its lockout. @throws AppError UNAUTHENTICATED, ACCOUNT_LOCKED */
export async function verifyAccountPassword(db: Db, user_id: UserId, password: string): Promise<void> {
  const user = await findUser(db, user_id);
  if (!user) throw new AppError('UNAUTHENTICATED');
  const attempt = await beginAttempt(db, user.email);
  if (!(await checkPassword(user.password_hash, password))) {
    await failAttempt(db, attempt, new AppError('UNAUTHENTICATED', { message: 'The password is wrong.' }));
  }
  await succeed(db, attempt);
}
