/**
 * Logs people in through the OpenID provider (ADR 51). The identity at the provider decides which account is used:
 *
 *   identity known ──────────────────────────────────────▶ its account
 *   else, without a verified address ────────────────────▶ refused
 *   else, an account has the address ── may be linked ───▶ that account, from now on
 *   else, sign-ups open, or a mapped group, or invited ──▶ a new account without password
 *
 * Memberships follow the groups that the provider reports. `checkIdentities` asks the provider again, in the
 * background, with the stored refresh token. If the provider refuses the token, the user's sessions end.
 */
import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import type { UserId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { type Tx, transaction } from '../db/pool.ts';
import { type Mailbox, TOLD_FOR_S } from '../mail/store.ts';
import { isInvited } from '../organisations/invitation-store.ts';
import { organisationsOf } from '../organisations/member-store.ts';
import { followGroups, type GroupChange } from '../organisations/members.ts';
import { insertUser, voidMailTokens } from './account-store.ts';
import { removeWaysIn } from './accounts.ts';
import { finishLogin } from './login.ts';
import { type Claimed, wantedRoles } from './oidc/claims.ts';
import {
  claimDueIdentity,
  claimIdentityOf,
  findIdentity,
  findIdentityOf,
  type Identity,
  insertIdentity,
  noteChecked,
  openRefreshToken,
  replaceProviderToken,
  sealRefreshToken,
} from './oidc/identity-store.ts';
import { type OidcContext, ProviderError, type ProviderProof } from './oidc/provider.ts';
import type { Caller } from './sessions.ts';
import {
  deleteOtherSessions,
  findUser,
  findUserByEmail,
  firstOrganisation,
  lockUser,
  updateUser,
} from './store.ts';

// Applies what the provider says about a person's groups, and audits what changes.

const ACTIONS: Record<GroupChange['change'], string> = {
  added: 'member.add_by_group',
  changed: 'member.change_role_by_group',
  removed: 'member.remove_by_group',
  last_owner_kept: 'member.keep_last_owner',
};

/** `from`: of the request; null: a check in the background. */
async function applyGroups(
  tx: Tx,
  { audit, quotas, signups, provider }: Pick<OidcContext, 'audit' | 'quotas' | 'signups' | 'provider'>,
  user_id: UserId,
  { groups }: Pick<Claimed, 'groups'>,
  from: { readonly ip: string; readonly request_id: string } | null,
): Promise<GroupChange[]> {
  // Unknown groups change nothing, and an account without any organisation gets an empty one.
  const mapping = groups === null ? null : wantedRoles(provider.settings.groups, groups);
  // While sign-ups are closed, a person without a group gets an organisation in which nothing can be created.
  const own = signups === 'open' ? quotas : { ...quotas, organisations: 0 };
  const changes = await followGroups(tx, own, user_id, mapping);
  for (const { org_id, change, role, previous_role } of changes) {
    await audit.append(tx, org_id, {
      actor: 'system',
      action: ACTIONS[change],
      target: user_id,
      ip: from?.ip ?? null,
      request_id: from?.request_id ?? null,
      data: { role, ...(previous_role === undefined ? {} : { previous_role }), provider: provider.name },
    });
  }
  return changes;
}

/** Why the provider's word does not open an account; each has its text in the console. */
export type ProviderRefusal = 'unverified_address' | 'no_account' | 'second_factor' | 'other_identity';

export class LoginRefused extends Error {
  override readonly name = 'LoginRefused';
  readonly refusal: ProviderRefusal;

  constructor(refusal: ProviderRefusal) {
    super(refusal);
    this.refusal = refusal;
  }
}

export interface LoginContext extends OidcContext {
  readonly mailbox: Mailbox;
  readonly has_smtp: boolean;
}

/** A session that the provider cannot be asked about again ends after so long. */
const UNCHECKED_SESSION_S = 3_600;

type From = Caller & { readonly request_id: string };

/** Opens a session for the person. @throws LoginRefused; AppError QUOTA_EXCEEDED */
export async function loginAtProvider(
  context: LoginContext,
  { person, refresh_token }: ProviderProof,
  from: From,
) {
  const { db, identities, provider } = context;
  const key = { issuer: provider.issuer, subject: person.subject };
  const { user_id, checkable } = await transaction(db, async (tx) => {
    const known = await findIdentity(tx, key);
    const bound = known ? { user_id: known.user_id, how: null } : await accountFor(tx, context, person);
    const found = bound.user_id;
    await noteChecked(tx, identities, key, refresh_token);
    await applyGroups(tx, context, found, person, from);
    if (bound.how !== null) await noteBound(tx, context, found, bound.how, from);
    return { user_id: found, checkable: refresh_token !== null || (known?.refresh_token ?? null) !== null };
  });
  const how = { by: provider.name, ...(checkable ? {} : { lifetime_s: UNCHECKED_SESSION_S }) };
  return finishLogin(context, user_id, { ...from, ...how });
}

/** An account for an identity that is not known yet, bound to it. @throws LoginRefused */
async function accountFor(tx: Tx, context: LoginContext, person: Claimed) {
  const { provider } = context;
  const { verified_email: email, subject } = person;
  if (email === null) throw new LoginRefused('unverified_address');
  const user = await findUserByEmail(tx, email);
  const user_id = user ? await link(tx, context, user.id, email) : await create(tx, context, person, email);
  await insertIdentity(tx, { issuer: provider.issuer, subject }, user_id);
  return { user_id, how: user ? 'auth.link_identity' : 'auth.register_at_provider' };
}

async function noteBound(
  tx: Tx,
  { audit, provider }: LoginContext,
  user_id: UserId,
  action: string,
  { ip, request_id }: From,
): Promise<void> {
  const org_id = present(await firstOrganisation(tx, user_id), 'an organisation of every account');
  const entry = { actor: user_id, action, target: user_id, ip, request_id };
  await audit.append(tx, org_id, { ...entry, data: { provider: provider.name } });
}

/**
 * Whether the account may be the person's. If nobody has proved yet that the address is the account's, somebody else may
 * have prepared the account: then it loses every other way in, as at a first password reset.
 */
async function link(tx: Tx, context: LoginContext, user_id: UserId, email: string): Promise<UserId> {
  const { provider, has_smtp, signups, mailbox } = context;
  await lockUser(tx, user_id);
  const user = await findUser(tx, user_id);
  if (user?.email_key !== email.toLowerCase()) throw new LoginRefused('no_account');
  // The address was given to another person at the provider, or the person has two accounts there.
  if (await findIdentityOf(tx, provider.issuer, user_id)) throw new LoginRefused('other_identity');
  const proved = user.email_confirmed && (has_smtp || signups === 'closed');
  // The provider's word must not be enough where the account asks for more.
  if (proved && user.mfa_enabled) throw new LoginRefused('second_factor');
  if (!proved) {
    await removeWaysIn(tx, user_id);
    await deleteOtherSessions(tx, user_id, null);
    for (const kind of ['password_reset', 'confirm_email'] as const) await voidMailTokens(tx, kind, user_id);
    await updateUser(tx, user_id, { password_hash: null, email_confirmed: true });
  }
  await tellLinked(tx, mailbox, provider.name, user.email);
  return user_id;
}

async function tellLinked(tx: Tx, mailbox: Mailbox, name: string, to: string): Promise<void> {
  const text = `The account with this address can now be opened by a login at ${name}, which says that the address is yours. If it was not you who logged in, tell the operator of this Berth.`;
  const subject = `Your Berth account is linked to ${name}`;
  await mailbox.post(tx, { kind: 'identity_linked', to, subject, text }, TOLD_FOR_S);
}

/** An account without password. @throws LoginRefused */
async function create(
  tx: Tx,
  { provider, signups }: LoginContext,
  { name, groups }: Claimed,
  email: string,
): Promise<UserId> {
  const is_mapped = wantedRoles(provider.settings.groups, groups ?? []).size > 0;
  if (signups !== 'open' && !is_mapped && !(await isInvited(tx, email))) throw new LoginRefused('no_account');
  try {
    return await insertUser(tx, { email, name, password_hash: null, email_confirmed: true });
  } catch (error) {
    // Registered at this moment: the next login links it.
    throw error instanceof AppError && error.code === 'CONFLICT' ? new LoginRefused('no_account') : error;
  }
}

// Asks the provider again about a user, with the stored refresh token: groups and roles follow. A refused token ends the
// user's sessions. Without a usable answer nothing changes. The caller has claimed the identity, because most refresh tokens
// may be used only once.

export type Checked =
  | { readonly outcome: 'followed'; readonly changes: readonly GroupChange[]; readonly groups_known: boolean }
  /** The provider refuses the token, or has given none. */
  | { readonly outcome: 'sessions_ended'; readonly because: 'refused' | 'no_token'; readonly count: number }
  | { readonly outcome: 'busy' };

/** Of the user whose turn it is; null: no user's. @throws ProviderError without a usable answer */
async function checkDueIdentity(context: OidcContext): Promise<Checked | null> {
  const identity = await claimDueIdentity(context.db, context.provider.issuer);
  return identity === undefined ? null : checkIdentity(context, identity);
}

/** Of one user, at once. @throws ProviderError without a usable answer */
export async function checkIdentityOf(context: OidcContext, user_id: UserId): Promise<Checked> {
  const identity = await claimIdentityOf(context.db, context.provider.issuer, user_id);
  return identity === undefined ? { outcome: 'busy' } : checkIdentity(context, identity);
}

async function checkIdentity(context: OidcContext, identity: Identity): Promise<Checked> {
  const token = openRefreshToken(context.identities, identity);
  if (token === null) return endSessions(context, identity, 'no_token');
  let proof: ProviderProof;
  try {
    proof = await context.provider.refresh(identity.subject, token);
  } catch (error) {
    if (error instanceof ProviderError && error.kind === 'refused')
      return endSessions(context, identity, 'refused');
    throw error;
  }
  const next = sealRefreshToken(context.identities, identity, proof.refresh_token ?? token);
  return transaction(context.db, async (tx) => {
    // A login meanwhile has brought newer groups.
    if (!(await replaceProviderToken(tx, identity, next))) return { outcome: 'busy' };
    const changes = await applyGroups(tx, context, identity.user_id, proof.person, null);
    return { outcome: 'followed', changes, groups_known: proof.person.groups !== null };
  });
}

async function endSessions(
  { db, audit, provider }: OidcContext,
  identity: Identity,
  because: 'refused' | 'no_token',
): Promise<Checked> {
  const { user_id } = identity;
  return transaction(db, async (tx) => {
    // A login meanwhile has brought a newer token.
    if (!(await replaceProviderToken(tx, identity, null))) return { outcome: 'busy' };
    const count = await deleteOtherSessions(tx, user_id, null);
    for (const org_id of await organisationsOf(tx, user_id)) {
      const entry = { actor: 'system', action: 'auth.end_sessions_by_provider', target: user_id };
      const data = { because, count, provider: provider.name };
      await audit.append(tx, org_id, { ...entry, ip: null, request_id: null, data });
    }
    return { outcome: 'sessions_ended', because, count };
  });
}

/** A provider that fails so often is left alone until the next run. */
const MOST_FAILURES = 3;

/** Asks the OpenID provider about each user whose last answer is getting old. */
export async function checkIdentities(context: OidcContext, log: Log, signal: AbortSignal): Promise<void> {
  let failures = 0;
  while (!signal.aborted && failures < MOST_FAILURES) {
    try {
      const checked = await checkDueIdentity(context);
      if (checked === null) return;
      if (checked.outcome === 'followed' && !checked.groups_known) {
        log.warn({ provider: context.provider.name }, 'a provider does not tell the groups of a user');
      }
    } catch (error) {
      if (!(error instanceof ProviderError)) throw error;
      failures += 1;
      log.warn(
        { provider: context.provider.name, kind: error.kind, problem: error.message },
        'no check of a user at the provider',
      );
    }
  }
}
