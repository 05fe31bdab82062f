/**
 * The address of an account. A user may register somebody else's address, so each address counts only after a token that
 * was mailed there has come back.
 */
import { AppError, invalid } from '../../shared/errors.ts';
import type { UserId } from '../../shared/ids.ts';
import { type Db, type Tx, transaction, violates } from '../db/pool.ts';
import { type Mailbox, TOLD_FOR_S } from '../mail/store.ts';
import { consumeMailToken, issueMailToken, MAIL_TOKEN_LIFETIME_S, voidMailTokens } from './account-store.ts';
import { type Principal, userOf } from './principal.ts';
import { updateEmail } from './store.ts';
import { hashToken } from './tokens.ts';
import { holdProved, verifyAccountPassword } from './verify-account.ts';

/** Mails a token that confirms the address. @throws AppError RATE_LIMITED */
export async function postConfirmation(
  tx: Tx,
  { mailbox, public_url }: { readonly mailbox: Mailbox; readonly public_url: string },
  user_id: UserId,
  email: string,
): Promise<void> {
  const token = await issueMailToken(tx, 'confirm_email', user_id, email);
  const text = `A Berth account was given this address. To confirm that it is yours, open this link within an hour:

${public_url}/email#token=${token}

Or run: berth account confirm LINK. For POST /v1/me/email/confirm, the token is:

${token}

If it was not you, ignore this message: nobody can confirm the address without it.
`;
  const mail = { kind: 'confirm_email', to: email, subject: 'Confirm your address', text } as const;
  await mailbox.post(tx, mail, MAIL_TOKEN_LIFETIME_S, hashToken(token));
}

/**
 * Begins a change of address: mails a token to the new address and notifies the old one. For the same address it mails
 * the token again. @throws AppError UNAUTHENTICATED, ACCOUNT_LOCKED, RATE_LIMITED
 */
export async function requestEmailChange(
  db: Db,
  mailbox: Mailbox,
  public_url: string,
  principal: Principal,
  request: { email: string; password: string },
  ip: string,
): Promise<void> {
  const user_id = userOf(principal);
  const proved_by = await verifyAccountPassword(db, user_id, request.password, ip);
  await transaction(db, async (tx) => {
    const user = await holdProved(tx, user_id, proved_by);
    await postConfirmation(tx, { mailbox, public_url }, user_id, request.email);
    // The owner of an unconfirmed address may be a stranger to the account.
    if (!user.email_confirmed || user.email_key === request.email.toLowerCase()) return;
    const told = {
      kind: 'email_changing',
      to: user.email,
      subject: 'Your Berth address is about to change',
      text: `Somebody who knows your password has asked to change the address of this account to ${request.email}. If it was not you, change your password now.`,
    } as const;
    await mailbox.post(tx, told, TOLD_FOR_S);
  });
}

/** Sets the new address by the token that was mailed there. @throws AppError INVALID_REQUEST, CONFLICT */
export async function confirmEmail(tx: Tx, principal: Principal, token: string): Promise<void> {
  const used = await consumeMailToken(tx, 'confirm_email', token);
  if (!used?.email || used.user_id !== userOf(principal)) {
    throw invalid('token', 'is not valid, was used already, has expired, or is for another account');
  }
  const { user_id, email } = used;
  try {
    await updateEmail(tx, user_id, email);
  } catch (error) {
    if (!violates(error, 'users_email_key_key')) throw error;
    throw new AppError('CONFLICT', { message: 'Another account has this address.', cause: error });
  }
  // Tokens mailed to the old address are void.
  await voidMailTokens(tx, 'password_reset', user_id);
}
