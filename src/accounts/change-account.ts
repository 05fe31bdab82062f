/** What people do with their own account: password, address, and its end. */

import { insertAccount } from '../auth/account-store.ts';
import { refuseGuessable } from '../auth/guessable-passwords.ts';
import { unlock } from '../auth/lockout.ts';
import {
  consumeMailToken,
  issueMailToken,
  MAIL_TOKEN_LIFETIME_S,
  voidMailTokens,
} from '../auth/mail-token-store.ts';
import { hashPassword } from '../auth/passwords.ts';
import type { Principal } from '../auth/principal.ts';
import { userOf } from '../auth/principal.ts';
import { setPassword } from '../auth/set-password.ts';
import {
  deleteUser,
  findUser,
  findUserByEmail,
  lockUser,
  lockUserForDeletion,
  updateEmail,
} from '../auth/store.ts';
import { hashToken } from '../auth/tokens.ts';
import { holdProved, verifyAccountPassword } from '../auth/verify-account.ts';
import { type Db, type Tx, transaction, violates } from '../db/pool.ts';
import { AppError, invalid } from '../lib/errors.ts';
import type { OrgId, UserId } from '../lib/ids.ts';
import { type Mailbox, TOLD_FOR_S } from '../mail/mailbox.ts';
import type { Mail } from '../mail/mailer.ts';
import { acceptInvitation, findInvitation } from '../orgs/invitations.ts';
import { type LeftOrganisation, leaveAllOrganisations } from '../orgs/members.ts';
import { hostsOfUserKeys } from '../ssh-keys/store.ts';
import { tellOfKeys } from '../ssh-keys/tell-of-keys.ts';

export interface Registration {
  readonly email: string;
  readonly password: string;
  readonly name: string;
  readonly invitation_token: string | null;
}

/** @throws AppError FORBIDDEN where sign-ups are closed: to those without an invitation */
export function refuseUninvited(signups: 'open' | 'closed'): void {
  if (signups === 'open') return;
  throw new AppError('FORBIDDEN', { message: 'Sign-ups are closed. Ask for an invitation.' });
}

/**
 * Makes an account, with an organisation of its own; `joined` is told, in the same transaction, of the one that it
 * was invited to. @throws AppError FORBIDDEN, INVALID_REQUEST, CONFLICT
 */
export async function register(
  db: Db,
  signups: 'open' | 'closed',
  request: Registration,
  joined: (tx: Tx, user_id: UserId, org_id: OrgId) => Promise<void>,
): Promise<UserId> {
  const { invitation_token } = request;
  const invited = invitation_token === null ? undefined : await findInvitation(db, invitation_token);
  const fits = invited !== undefined && invited.email.toLowerCase() === request.email.toLowerCase();
  if (invitation_token !== null && !fits) {
    throw new AppError('FORBIDDEN', { message: 'The invitation is not valid, or is for another address.' });
  }
  if (!fits) refuseUninvited(signups);
  refuseGuessable('password', request.password, request.email);
  const password_hash = await hashPassword(request.password);
  return transaction(db, async (tx) => {
    const user_id = await insertAccount(tx, { email: request.email, name: request.name, password_hash });
    if (invitation_token !== null) {
      const organisation = await acceptInvitation(tx, user_id, invitation_token);
      await joined(tx, user_id, organisation.id);
    }
    return user_id;
  });
}

export interface PreparedPassword {
  readonly password_hash: string;
  /** The hash that the present password was right for. */
  readonly proved_by: string;
}

/**
 * Verifies the present password and hashes the new one, which may take a while.
 * @throws AppError INVALID_REQUEST, UNAUTHENTICATED, ACCOUNT_LOCKED
 */
export async function prepareNewPassword(
  db: Db,
  principal: Principal,
  request: { current_password: string; new_password: string },
  ip: string,
): Promise<PreparedPassword> {
  const user = await findUser(db, userOf(principal));
  refuseGuessable('new_password', request.new_password, user?.email ?? null);
  const proved_by = await verifyAccountPassword(db, userOf(principal), request.current_password, ip);
  return { proved_by, password_hash: await hashPassword(request.new_password) };
}

/** Sets the password and ends every other session. @throws AppError UNAUTHENTICATED after a reset meanwhile */
export async function changePassword(
  tx: Tx,
  principal: Principal,
  { password_hash, proved_by }: PreparedPassword,
): Promise<UserId> {
  const user_id = userOf(principal);
  await holdProved(tx, user_id, proved_by);
  const keep = principal.credential.kind === 'session' ? principal.credential.id : null;
  await setPassword(tx, user_id, { password_hash, how: 'changed', actor: user_id, keep });
  return user_id;
}

/** Sends a reset link if there is such an account; says nothing either way. */
export async function requestPasswordReset(
  db: Db,
  mailbox: Mailbox,
  public_url: string,
  email: string,
): Promise<void> {
  const user = await findUserByEmail(db, email);
  if (!user) return;
  await transaction(db, async (tx) => {
    // A change of the address voids what went to the one before, or is seen here.
    await lockUser(tx, user.id);
    const now = await findUser(tx, user.id);
    if (now?.email_key !== user.email_key) return;
    const token = await issueMailToken(tx, 'password_reset', user.id, null);
    const mail = resetMail(user.email, public_url, token);
    await mailbox.post(tx, mail, MAIL_TOKEN_LIFETIME_S, hashToken(token));
  });
}

function resetMail(to: string, public_url: string, token: string): Mail {
  return {
    to,
    subject: 'Reset your Berth password',
    text: [
      'Someone, hopefully you, asked to reset the password of this account.',
      '',
      `Within an hour: ${public_url}/password-reset#token=${token}`,
      '',
      'The token by itself, for POST /v1/auth/password-reset/confirm with the new password:',
      '',
      token,
      '',
      'If it was not you, ignore this message: nothing has changed.',
    ].join('\n'),
  };
}

/**
 * Sets a new password by the token of the mail; ends every session and any lock. `done` is told in the same
 * transaction. @throws AppError INVALID_REQUEST
 */
export async function confirmPasswordReset(
  db: Db,
  request: { token: string; new_password: string },
  done: (tx: Tx, user_id: UserId) => Promise<void>,
): Promise<UserId> {
  refuseGuessable('new_password', request.new_password, null);
  const password_hash = await hashPassword(request.new_password);
  return transaction(db, async (tx) => {
    const used = await consumeMailToken(tx, 'password_reset', request.token);
    if (!used) throw invalid('token', 'is not valid, was used already, or has expired');
    const user = await findUser(tx, used.user_id);
    // Thrown, it leaves the token as it was.
    if (user) refuseGuessable('new_password', request.new_password, user.email);
    await setPassword(tx, used.user_id, { password_hash, how: 'reset', actor: used.user_id });
    if (user) await unlock(tx, user.email);
    await done(tx, used.user_id);
    return used.user_id;
  });
}

/** Begins a change of address: the new one must prove itself; the old one is told. */
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
    const token = await issueMailToken(tx, 'email_change', user_id, request.email);
    const asked = {
      to: request.email,
      subject: 'Confirm your new address',
      text: `Within an hour: ${public_url}/email#token=${token}\n\nThe token by itself, for POST /v1/me/email/confirm:\n\n${token}`,
    };
    const told = {
      to: user.email,
      subject: 'Your Berth address is about to change',
      text: `A change of this account's address to ${request.email} was asked for. If it was not you, change your password now.`,
    };
    await mailbox.post(tx, asked, MAIL_TOKEN_LIFETIME_S, hashToken(token));
    await mailbox.post(tx, told, TOLD_FOR_S);
  });
}

/** Takes the new address, by the token that was sent there. @throws AppError INVALID_REQUEST, CONFLICT */
export async function confirmEmailChange(tx: Tx, principal: Principal, token: string): Promise<void> {
  const used = await consumeMailToken(tx, 'email_change', token);
  if (!used?.email || used.user_id !== userOf(principal)) {
    throw invalid('token', 'is not valid, was used already, or has expired');
  }
  const { user_id, email } = used;
  try {
    await updateEmail(tx, user_id, email);
  } catch (error) {
    if (!violates(error, 'users_email_key_key')) throw error;
    throw new AppError('CONFLICT', { message: 'Another account has this address.', cause: error });
  }
  // What went to the address before proves nothing any more.
  await voidMailTokens(tx, 'password_reset', user_id);
}

type UserRow = NonNullable<Awaited<ReturnType<typeof findUser>>>;

/**
 * Ends the account with all that is its own; answers the organisations that it has left and that go on. `check` is
 * called with the account under its lock; it throws to refuse.
 * @throws AppError UNAUTHENTICATED, CONFLICT for the last owner of what others use
 */
export async function deleteAccount(
  tx: Tx,
  principal: Principal,
  check: (present: UserRow) => void,
): Promise<LeftOrganisation[]> {
  const user_id = userOf(principal);
  const hosts = await hostsOfUserKeys(tx, user_id);
  // Organisations are held before their members, as everywhere.
  const left = await leaveAllOrganisations(tx, user_id);
  await lockUserForDeletion(tx, user_id);
  const user = await findUser(tx, user_id);
  if (!user) throw new AppError('UNAUTHENTICATED');
  check(user);
  // What it came to be a member of meanwhile: now nobody can add to that.
  left.push(...(await leaveAllOrganisations(tx, user_id)));
  await deleteUser(tx, user_id);
  await tellOfKeys(tx, hosts);
  return left;
}
