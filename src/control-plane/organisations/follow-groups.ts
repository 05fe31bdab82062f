/**
 * Memberships that a provider's groups give. They begin, change and end with the groups. Memberships given by hand stay as
 * they are, and so does the last owner of an organisation.
 */
import { present } from '../../shared/assert.ts';
import type { OrgId, UserId } from '../../shared/ids.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import type { Tx } from '../db/pool.ts';
import type { Role } from '../db/tables.ts';
import { append } from '../events/append.ts';
import { notifyKeyChange } from '../ssh-keys/account-keys.ts';
import { vmsOfUserKeys } from '../ssh-keys/store.ts';
import { ensureOrganisation } from './change-organisation.ts';
import { deleteInvitationsBeyond } from './invitation-store.ts';
import { findMember, insertMembership, type MemberRow, membershipsOf, updateRole } from './member-store.ts';
import { endMembership, isLastOwner } from './members.ts';
import { lockOrganisation } from './store.ts';
import { memberView } from './view.ts';

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
