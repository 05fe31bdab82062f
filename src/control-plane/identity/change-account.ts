/** Registers an account, changes its password, and deletes it. */
import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import { newId, type OrgId, type UserId } from '../../shared/ids.ts';
import { revokeKeysOf } from '../api-keys/revoke-api-key.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import type { Mailbox } from '../mail/store.ts';
import { acceptInvitation, findInvitation } from '../organisations/invitations.ts';
import { organisationsOf } from '../organisations/member-store.ts';
import { type LeftOrganisation, leaveAllOrganisations } from '../organisations/members.ts';
import { type ChangedKey, notifyKeyChange, revokeSshKey } from '../ssh-keys/account-keys.ts';
import { sshKeyIdsOf, vmsOfUserKeys } from '../ssh-keys/store.ts';
import { countWaysIn, insertAccount, type WaysIn } from './account-store.ts';
import { postConfirmation } from './change-email.ts';
import { removeAllFactors } from './mfa/factors.ts';
import { hashPassword, refuseGuessable, setPassword } from './passwords.ts';
import { type Principal, userOf } from './principal.ts';
import { deleteUser, findUser, firstOrganisation, lockUserForDeletion } from './store.ts';
import { holdProved, verifyAccountPassword } from './verify-account.ts';

export interface Registration {
  readonly email: string;
  readonly password: string;
  readonly name: string;
  readonly invitation_token: string | null;
}

/** @throws AppError FORBIDDEN without an invitation, if sign-ups are closed */
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
 * Creates an account with its own organisation and mails a token that confirms the address. An invitation's token
 * confirms it at once; then `joined` is called, in the same transaction, with the organisation of the invitation.
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
    // Without SMTP no mail can be sent to the address, so its owner cannot reset the password either.
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
  /** The hash that the current password matched. */
  readonly proved_by: string;
}

/**
 * Verifies the current password and hashes the new one. Slow, so it runs outside of a transaction.
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

/** Sets the password and ends every other session. @throws AppError UNAUTHENTICATED if the password was reset concurrently */
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
 * Deletes the account and everything it owns. Returns the organisations that it has left and that remain. `check` runs
 * while the account is locked and throws to reject.
 * @throws AppError UNAUTHENTICATED, CONFLICT for the last owner of an organisation that others use
 */
export async function deleteAccount(
  tx: Tx,
  principal: Principal,
  check: (present: UserRow) => void,
): Promise<LeftOrganisation[]> {
  const user_id = userOf(principal);
  const vms = await vmsOfUserKeys(tx, user_id);
  // Lock organisations before their members, as everywhere.
  const left = await leaveAllOrganisations(tx, user_id);
  await lockUserForDeletion(tx, user_id);
  const user = await findUser(tx, user_id);
  if (!user) throw new AppError('UNAUTHENTICATED');
  check(user);
  // Memberships added concurrently; from here on none can be added.
  left.push(...(await leaveAllOrganisations(tx, user_id)));
  await deleteUser(tx, user_id);
  await notifyKeyChange(tx, vms);
  return left;
}

export interface RemovedWaysIn {
  readonly count: WaysIn;
  /** For the audit logs of the organisations to which the keys give access. */
  readonly ssh_keys: readonly ChangedKey[];
}

/** Removes every API key, SSH key and second factor of an account. Keys that it made for service accounts remain. */
export async function removeWaysIn(tx: Tx, user_id: UserId): Promise<RemovedWaysIn> {
  const count = await countWaysIn(tx, user_id);
  for (const org_id of await organisationsOf(tx, user_id))
    await revokeKeysOf(tx, org_id, { user_id }, user_id);
  const principal = await asInASession(tx, user_id);
  const ssh_keys: ChangedKey[] = [];
  for (const id of await sshKeyIdsOf(tx, user_id)) ssh_keys.push(await revokeSshKey(tx, principal, id));
  await removeAllFactors(tx, user_id, user_id);
  return { count, ssh_keys };
}

/** The account's owner, verified by the address and without a session. */
async function asInASession(tx: Tx, user_id: UserId): Promise<Principal> {
  return {
    credential: { kind: 'session', id: newId('sess'), user_id, email_confirmed: true },
    org_id: present(await firstOrganisation(tx, user_id), 'an organisation of every account'),
    role: null,
    scopes: new Set(),
  };
}
