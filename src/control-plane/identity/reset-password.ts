/**
 * Resets a forgotten password with a token that was mailed to the account's address. The token also confirms the
 * address.
 *
 * A thief of the old password may have added keys and second factors, which a new password does not end. So the
 * notification says how many remain, and `revoke_all` removes them. An account whose address was unconfirmed until now
 * loses them always: somebody else may have registered it, and a second factor of that person would lock the address's
 * owner out.
 */
import { AppError, invalid } from '../../shared/errors.ts';
import type { UserId } from '../../shared/ids.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import type { Mailbox, Post } from '../mail/store.ts';
import type { ChangedKey } from '../ssh-keys/account-keys.ts';
import { consumeMailToken, issueMailToken, MAIL_TOKEN_LIFETIME_S, type WaysIn } from './account-store.ts';
import { removeWaysIn } from './accounts.ts';
import { unlock } from './lockout.ts';
import { hashPassword, refuseGuessable, setPassword } from './passwords.ts';
import { findUser, findUserByEmail, lockUser, updateUser } from './store.ts';
import { hashToken } from './tokens.ts';

/** Sends a reset link if the account exists and has not got too many. The caller cannot tell whether it was sent. */
export async function requestPasswordReset(
  db: Db,
  mailbox: Mailbox,
  public_url: string,
  email: string,
): Promise<void> {
  const user = await findUserByEmail(db, email);
  // An account without a password logs in at the provider, which decides whether the person still may.
  if (!user || user.password_hash === null) return;
  try {
    await transaction(db, async (tx) => {
      // A concurrent change of the address either voids this token or is visible here.
      await lockUser(tx, user.id);
      const now = await findUser(tx, user.id);
      if (now?.email_key !== user.email_key) return;
      const token = await issueMailToken(tx, 'password_reset', user.id, null);
      const mail = resetMail(user.email, public_url, token);
      await mailbox.post(tx, mail, MAIL_TOKEN_LIFETIME_S, hashToken(token));
    });
  } catch (error) {
    // The token that was mailed last stays valid.
    if (!(error instanceof AppError && error.code === 'RATE_LIMITED')) throw error;
  }
}

function resetMail(to: string, public_url: string, token: string): Post {
  return {
    kind: 'password_reset',
    to,
    subject: 'Reset your Berth password',
    text: [
      'Somebody has asked to reset the password of this account. To choose a new one, open this link within an hour:',
      '',
      `${public_url}/password-reset#token=${token}`,
      '',
      'For POST /v1/auth/password-reset/confirm, the token is:',
      '',
      token,
      '',
      'If it was not you, ignore this message: nothing has changed.',
    ].join('\n'),
  };
}

export interface ResetRequest {
  readonly token: string;
  readonly new_password: string;
  readonly revoke_all?: boolean;
}

/** For the audit log. */
export interface Reset {
  readonly user_id: UserId;
  readonly removed: WaysIn | null;
  readonly ssh_keys: readonly ChangedKey[];
  readonly remaining: WaysIn;
}

/**
 * Sets a new password by the mailed token; ends every session and any lockout. `done` is called in the same transaction.
 * @throws AppError INVALID_REQUEST
 */
export async function confirmPasswordReset(
  { db, has_smtp }: { readonly db: Db; readonly has_smtp: boolean },
  request: ResetRequest,
  done: (tx: Tx, reset: Reset) => Promise<void>,
): Promise<void> {
  refuseGuessable('new_password', request.new_password, null);
  const password_hash = await hashPassword(request.new_password);
  await transaction(db, async (tx) => {
    const used = await consumeMailToken(tx, 'password_reset', request.token);
    if (!used) throw invalid('token', 'is not valid, was used already, or has expired');
    const { user_id } = used;
    await lockUser(tx, user_id);
    const user = await findUser(tx, user_id);
    if (!user) throw invalid('token', 'is of an account that was deleted');
    // Throwing rolls back, so the token stays valid.
    refuseGuessable('new_password', request.new_password, user.email);
    const was_confirmed = user.email_confirmed || !has_smtp;
    const removed = request.revoke_all === true || !was_confirmed ? await removeWaysIn(tx, user_id) : null;
    if (!was_confirmed) await updateUser(tx, user_id, { email_confirmed: true });
    const how = was_confirmed ? 'reset' : 'first_reset';
    const remaining = await setPassword(tx, user_id, { password_hash, how, actor: user_id });
    await unlock(tx, user.email);
    await done(tx, {
      ...{ user_id, remaining, removed: removed?.count ?? null },
      ssh_keys: removed?.ssh_keys ?? [],
    });
  });
}
