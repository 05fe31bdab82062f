/**
 * Adds, changes and removes the members of an organisation: at a caller's request, or because of the groups that the
 * OpenID provider reports.
 *
 * - Every change first locks the organisation.
 * - Only owners make and unmake owners. An organisation with other members or instances keeps its last owner.
 */
import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import type { OrgId, UserId } from '../../shared/ids.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import type { Role } from '../../shared/roles.ts';
import { revokeKeysOf } from '../api-keys/change-api-key.ts';
import type { Tx } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { actorOf, type Principal, userOf } from '../identity/principal.ts';
import { notifyKeyChange, revokeKeysOfMember } from '../ssh-keys/account-keys.ts';
import { vmsOfUserKeys } from '../ssh-keys/store.ts';
import { ensureOrganisation } from './change-organisation.ts';
import { deleteInvitationsBeyond } from './invitation-store.ts';
import {
  countMembers,
  deleteMembership,
  dropFromKeySets,
  findMember,
  findRole,
  insertMembership,
  lockMembership,
  type MemberRow,
  membershipsOf,
  organisationsOf,
  updateRole,
} from './member-store.ts';
import { memberView } from './model.ts';
import { countInstances, deleteOrganisation, lockOrganisation } from './store.ts';

// The rules about owners, checked while the organisation is locked: only owners appoint and demote owners, and an
// organisation with other members or instances keeps its last owner.

export const OWNERS_ONLY = 'Only an owner makes or unmakes owners.';

/**
 * The caller's role while the organisation is locked; it may have changed since the request was authenticated.
 * @throws AppError FORBIDDEN
 */
async function presentRole(tx: Tx, principal: Principal): Promise<Role> {
  const role = await findRole(tx, principal.org_id, userOf(principal));
  if (role === undefined) {
    throw new AppError('FORBIDDEN', { message: 'You are no longer a member of the organisation.' });
  }
  return role;
}

/** As {@link presentRole}, for owners and administrators. @throws AppError FORBIDDEN */
export async function presentAdmin(tx: Tx, principal: Principal): Promise<'owner' | 'admin'> {
  const role = await presentRole(tx, principal);
  if (role !== 'owner' && role !== 'admin') throw new AppError('FORBIDDEN');
  return role;
}

/** Whether this owner is the only one. */
async function isLastOwner(tx: Tx, org_id: OrgId): Promise<boolean> {
  return (await countMembers(tx, org_id)).owners <= 1;
}

/** Whether the organisation has another member or an instance. */
async function isInUse(tx: Tx, org_id: OrgId): Promise<boolean> {
  return (await countMembers(tx, org_id)).members > 1 || (await countInstances(tx, org_id)) > 0;
}

/** `what`: the forbidden action, `leave`, `be demoted`, … */
function lastOwnerStays(what: string, name?: string): AppError {
  const of = name === undefined ? 'the organisation' : `the organisation "${name}"`;
  // Only an owner can appoint one, so a demotion is rejected even where leaving would be allowed.
  const or = what === 'be demoted' ? '' : ', or remove its other members and delete its instances';
  return new AppError('CONFLICT', {
    message: `The last owner of ${of} cannot ${what}. Make another member owner first${or}.`,
  });
}

/** Throws if the membership has changed since the caller read it. */
type Check = (before: MemberRow) => void;

/** @throws AppError FORBIDDEN, NOT_FOUND, CONFLICT for the last owner */
export async function changeRole(
  tx: Tx,
  principal: Principal,
  user_id: UserId,
  role: Role,
  check: Check = () => undefined,
): Promise<{ member: MemberRow; previous_role: Role }> {
  const { org_id } = principal;
  await lockOrganisation(tx, org_id);
  const own_role = await presentAdmin(tx, principal);
  const before = await findMember(tx, org_id, user_id);
  if (own_role !== 'owner' && (role === 'owner' || before?.role === 'owner')) {
    throw new AppError('FORBIDDEN', { message: OWNERS_ONLY });
  }
  if (!before) throw new AppError('NOT_FOUND');
  check(before);
  if (before.role === role) return { member: before, previous_role: role };
  if (before.role === 'owner' && (await isLastOwner(tx, org_id))) throw lastOwnerStays('be demoted');
  await updateRole(tx, org_id, user_id, role);
  // In mode `account` the role decides whether the member's keys count.
  await notifyKeyChange(tx, await vmsOfUserKeys(tx, user_id));
  await deleteInvitationsBeyond(tx, org_id, user_id, role);
  const member = { ...before, role };
  await append(tx, {
    org_id,
    type: 'member.role_changed',
    data: { member: memberView(member), previous_role: before.role },
    actor: actorOf(principal),
  });
  return { member, previous_role: before.role };
}

/**
 * Removes a member, also at the member's own request. API keys, SSH access to the organisation's instances and open
 * invitations end at once. If the last owner leaves an otherwise empty organisation, it is deleted.
 * @throws AppError FORBIDDEN, NOT_FOUND, CONFLICT for the last owner
 */
export async function removeMember(
  tx: Tx,
  quotas: QuotaLimits,
  principal: Principal,
  user_id: UserId,
  check: Check = () => undefined,
): Promise<MemberRow> {
  const { org_id } = principal;
  const itself = userOf(principal) === user_id;
  await lockOrganisation(tx, org_id);
  const own_role = await presentRole(tx, principal);
  if (!itself && own_role !== 'owner' && own_role !== 'admin') throw new AppError('FORBIDDEN');
  const member = await findMember(tx, org_id, user_id);
  if (!member) throw new AppError('NOT_FOUND');
  if (member.role === 'owner' && own_role !== 'owner') {
    throw new AppError('FORBIDDEN', { message: OWNERS_ONLY });
  }
  check(member);
  await endMembership(tx, org_id, member, actorOf(principal), itself ? 'leave' : 'be removed');
  await ensureOrganisation(tx, quotas, user_id);
  return member;
}

export interface LeftOrganisation {
  readonly org_id: OrgId;
  /** Those the user had there. */
  readonly role: Role;
}

/**
 * The organisations' part of an account's deletion: ends every membership and deletes organisations that are then empty.
 * Returns the others.
 * @throws AppError CONFLICT naming the organisation that needs another owner first
 */
export async function leaveAllOrganisations(tx: Tx, user_id: UserId): Promise<LeftOrganisation[]> {
  const left: LeftOrganisation[] = [];
  for (const org_id of await organisationsOf(tx, user_id)) {
    const organisation = await lockOrganisation(tx, org_id);
    const member = await findMember(tx, org_id, user_id);
    if (!organisation || !member) continue;
    const what = 'delete the account';
    const goes_on = await endMembership(tx, org_id, member, user_id, what, organisation.name);
    if (goes_on) left.push({ org_id, role: member.role });
  }
  return left;
}

/** The organisation must be locked. Returns whether it remains. */
async function endMembership(
  tx: Tx,
  org_id: OrgId,
  member: MemberRow,
  actor: string,
  what: string,
  name?: string,
): Promise<boolean> {
  const { user_id } = member;
  if (member.role === 'owner' && (await isLastOwner(tx, org_id))) {
    if (await isInUse(tx, org_id)) throw lastOwnerStays(what, name);
    await deleteOrganisation(tx, org_id);
    return false;
  }
  // From here on no key of the member joins a key set, and concurrent additions are committed.
  await lockMembership(tx, org_id, user_id);
  const vms = await vmsOfUserKeys(tx, user_id);
  await dropFromKeySets(tx, org_id, user_id);
  await revokeKeysOf(tx, org_id, { user_id }, actor);
  await revokeKeysOfMember(tx, org_id, user_id, actor);
  await deleteInvitationsBeyond(tx, org_id, user_id, null);
  await deleteMembership(tx, org_id, user_id);
  await append(tx, { org_id, type: 'member.removed', data: { member: memberView(member) }, actor });
  await notifyKeyChange(tx, vms);
  return true;
}

// Memberships that a provider's groups give. They begin, change and end with the groups. Memberships given by hand stay as
// they are, and so does the last owner of an organisation.

export interface GroupChange {
  readonly org_id: OrgId;
  readonly change: 'added' | 'changed' | 'removed' | 'last_owner_kept';
  /** The role now; of a former member, the last one. */
  readonly role: Role;
  readonly previous_role?: Role;
}

/** What the groups decide about one organisation; undefined: nothing to do. */
function differs(
  now: { readonly role: Role; readonly by_groups: boolean } | undefined,
  wanted: Role | undefined,
): boolean {
  if (now === undefined) return wanted !== undefined;
  return now.by_groups && now.role !== wanted;
}

/**
 * Gives a user the wanted roles, and takes those that other groups gave before. Organisations that do not exist are left
 * out. Null: the groups are unknown, and nothing changes. A user who is then nowhere a member gets an empty organisation.
 */
export async function followGroups(
  tx: Tx,
  quotas: QuotaLimits,
  user_id: UserId,
  wanted: ReadonlyMap<OrgId, Role> | null,
): Promise<GroupChange[]> {
  const changes = wanted === null ? [] : await followAll(tx, user_id, wanted);
  await ensureOrganisation(tx, quotas, user_id);
  return changes;
}

async function followAll(tx: Tx, user_id: UserId, wanted: ReadonlyMap<OrgId, Role>): Promise<GroupChange[]> {
  const before = new Map((await membershipsOf(tx, user_id)).map((each) => [each.org_id, each]));
  const changes: GroupChange[] = [];
  for (const org_id of [...new Set([...before.keys(), ...wanted.keys()])].sort()) {
    // Most checks change nothing, and lock nothing.
    if (!differs(before.get(org_id), wanted.get(org_id))) continue;
    if (!(await lockOrganisation(tx, org_id))) continue;
    const change = await followIn(tx, org_id, user_id, wanted.get(org_id));
    if (change) changes.push(change);
  }
  return changes;
}

/** The organisation is locked. */
async function followIn(
  tx: Tx,
  org_id: OrgId,
  user_id: UserId,
  role: Role | undefined,
): Promise<GroupChange | null> {
  const member = await findMember(tx, org_id, user_id);
  if (!differs(member, role)) return null;
  if (!member) return role === undefined ? null : addMember(tx, org_id, user_id, role);
  const previous_role = member.role;
  if (previous_role === 'owner' && (await isLastOwner(tx, org_id))) {
    return { org_id, change: 'last_owner_kept', role: previous_role };
  }
  if (role === undefined) {
    await endMembership(tx, org_id, member, 'system', 'be removed');
    return { org_id, change: 'removed', role: previous_role };
  }
  await changeMember(tx, org_id, member, role);
  return { org_id, change: 'changed', role, previous_role };
}

async function addMember(tx: Tx, org_id: OrgId, user_id: UserId, role: Role): Promise<GroupChange> {
  await insertMembership(tx, org_id, user_id, role, true);
  const member = present(await findMember(tx, org_id, user_id), 'member just added');
  await append(tx, { org_id, type: 'member.added', data: { member: memberView(member) }, actor: 'system' });
  // Instances that the returning user made before may accept the user's keys again.
  await notifyKeyChange(tx, await vmsOfUserKeys(tx, user_id));
  return { org_id, change: 'added', role };
}

async function changeMember(tx: Tx, org_id: OrgId, before: MemberRow, role: Role): Promise<void> {
  const { user_id, role: previous_role } = before;
  await updateRole(tx, org_id, user_id, role);
  // In mode `account` the role decides whether the member's keys count.
  await notifyKeyChange(tx, await vmsOfUserKeys(tx, user_id));
  await deleteInvitationsBeyond(tx, org_id, user_id, role);
  const data = { member: memberView({ ...before, role }), previous_role };
  await append(tx, { org_id, type: 'member.role_changed', data, actor: 'system' });
}
