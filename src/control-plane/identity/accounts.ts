/**
 * Registers accounts, creates the first administrator, changes passwords and e-mail addresses, and deletes accounts.
 *
 * - A user may register somebody else's address. So an address counts as confirmed only after a token that was mailed
 *   to it has come back.
 * - Every check of a password is subject to the lockout (lockout.ts).
 */
import { present } from '../../shared/assert.ts';
import { AppError, invalid } from '../../shared/errors.ts';
import { newId, type OrgId, type UserId } from '../../shared/ids.ts';
import { allQuotas } from '../../shared/quotas.ts';
import { revokeKeysOf } from '../api-keys/change-api-key.ts';
import { type Db, type Tx, transaction, violates } from '../db/pool.ts';
import { type Mailbox, TOLD_FOR_S } from '../mail/store.ts';
import { acceptInvitation, findInvitation } from '../organisations/invitations.ts';
import { organisationsOf } from '../organisations/member-store.ts';
import { type LeftOrganisation, leaveAllOrganisations } from '../organisations/members.ts';
import { type ChangedKey, notifyKeyChange, revokeSshKey } from '../ssh-keys/account-keys.ts';
import { sshKeyIdsOf, vmsOfUserKeys } from '../ssh-keys/store.ts';
import {
  consumeMailToken,
  countWaysIn,
  insertAccount,
  issueMailToken,
  MAIL_TOKEN_LIFETIME_S,
  voidMailTokens,
  type WaysIn,
} from './account-store.ts';
import { type Attempt, beginAttempt, fail, lockedNow, succeed, withdraw } from './lockout.ts';
import { removeAllFactors } from './mfa/factors.ts';
import { hashPassword, refuseGuessable, setPassword, verifyPassword } from './passwords.ts';
import { type Principal, userOf } from './principal.ts';
import {
  deleteUser,
  findUser,
  firstOrganisation,
  hasUsers,
  lockUser,
  lockUserForDeletion,
  lockUsers,
  updateEmail,
} from './store.ts';
import { hashToken } from './tokens.ts';

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

/** Mails a token that confirms the address. @throws AppError RATE_LIMITED */
async function postConfirmation(
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

/**
 * Creates the first account unless one exists, and returns whether it did. The account owns the first organisation, which has
 * no quotas and operates the installation. `keep` stores the password before the commit, so that no account exists without a
 * known password.
 */
export async function createFirstAdministrator(
  db: Db,
  email: string,
  password: string,
  keep: () => Promise<void> = async () => undefined,
): Promise<boolean> {
  if (await hasUsers(db)) return false;
  const password_hash = await hashPassword(password);
  return transaction(db, async (tx) => {
    await lockUsers(tx);
    if (await hasUsers(tx)) return false;
    const account = { email, name: 'Administrator', password_hash, email_confirmed: true };
    await insertAccount(tx, account, { quotas: allQuotas(null), operator: true });
    await keep();
    return true;
  });
}
