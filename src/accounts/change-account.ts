/** What people do with their own account: its making, password, and its end. */
import { insertAccount } from '../auth/account-store.ts';
import { refuseGuessable } from '../auth/guessable-passwords.ts';
import { hashPassword } from '../auth/passwords.ts';
import type { Principal } from '../auth/principal.ts';
import { userOf } from '../auth/principal.ts';
import { setPassword } from '../auth/set-password.ts';
import { deleteUser, findUser, lockUserForDeletion } from '../auth/store.ts';
import { holdProved, verifyAccountPassword } from '../auth/verify-account.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import type { OrgId, UserId } from '../lib/ids.ts';
import type { Mailbox } from '../mail/mailbox.ts';
import { acceptInvitation, findInvitation } from '../orgs/invitations.ts';
import { type LeftOrganisation, leaveAllOrganisations } from '../orgs/members.ts';
import { notifyKeyChange } from '../ssh-keys/notify-key-change.ts';
import { hostsOfUserKeys } from '../ssh-keys/store.ts';
import { postConfirmation } from './change-email.ts';

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

export interface RegistrationContext {
  readonly db: Db;
  readonly mailbox: Mailbox;
  readonly has_smtp: boolean;
  readonly public_url: string;
  readonly signups: 'open' | 'closed';
}

/**
 * Makes an account, with an organisation of its own, and mails what confirms its address; an invitation's token proves
 * the address already. `joined` is told, in the same transaction, of the organisation that it was invited to.
 * @throws AppError FORBIDDEN, INVALID_REQUEST, CONFLICT, RATE_LIMITED
 */
export async function register(
  { db, mailbox, has_smtp, public_url, signups }: RegistrationContext,
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
    const { email, name } = request;
    // Without SMTP nothing can be sent there, nor the password reset by its owner.
    const email_confirmed = fits || !has_smtp;
    const user_id = await insertAccount(tx, { email, name, password_hash, email_confirmed });
    if (!email_confirmed) await postConfirmation(tx, { mailbox, public_url }, user_id, email);
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
  await notifyKeyChange(tx, hosts);
  return left;
}
