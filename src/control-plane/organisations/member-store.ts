/** SQL of memberships: which users belong to an organisation, and with which role. */
import { sql } from 'kysely';
import { present } from '../../shared/assert.ts';
import type { OrgId, UserId } from '../../shared/ids.ts';
import type { Role } from '../../shared/roles.ts';
import type { Tx } from '../db/pool.ts';

/** A member as listed: `id` is the position in the list, ordered by joining. */
export type MemberRow = Awaited<ReturnType<typeof listMembers>>[number];

/** Microseconds since the epoch, as PostgreSQL keeps time, and the user: `<microseconds>.usr_…`. */
const POSITION = sql<string>`(extract(epoch from m.created_at) * 1000000)::bigint || '.' || m.user_id`;

function members(tx: Tx, org_id: OrgId) {
  return tx
    .selectFrom('memberships as m')
    .innerJoin('users as u', 'u.id', 'm.user_id')
    .select(['m.user_id', 'u.email', 'u.name', 'm.role', 'm.by_groups', 'm.created_at'])
    .select(POSITION.as('id'))
    .where('m.org_id', '=', org_id);
}

/** @param before an `id` of this list */
export async function listMembers(tx: Tx, org_id: OrgId, before: string | null, limit: number) {
  let query = members(tx, org_id);
  if (before !== null) {
    const [micros, user_id] = before.split('.');
    query = query.where(
      sql<boolean>`(m.created_at, m.user_id) <
        (timestamptz 'epoch' + ${micros}::bigint * interval '1 microsecond', ${user_id})`,
    );
  }
  return query.orderBy('m.created_at', 'desc').orderBy('m.user_id', 'desc').limit(limit).execute();
}

export async function findMember(tx: Tx, org_id: OrgId, user_id: UserId): Promise<MemberRow | undefined> {
  return members(tx, org_id).where('m.user_id', '=', user_id).executeTakeFirst();
}

/** Whether the organisation has a member with this address. */
export async function hasMemberWithEmail(tx: Tx, org_id: OrgId, email: string): Promise<boolean> {
  const row = await tx
    .selectFrom('memberships as m')
    .innerJoin('users as u', 'u.id', 'm.user_id')
    .select('u.id')
    .where('m.org_id', '=', org_id)
    .where('u.email_key', '=', email.toLowerCase())
    .executeTakeFirst();
  return row !== undefined;
}

export async function findRole(tx: Tx, org_id: OrgId, user_id: UserId): Promise<Role | undefined> {
  const row = await tx
    .selectFrom('memberships')
    .select('role')
    .where('org_id', '=', org_id)
    .where('user_id', '=', user_id)
    .executeTakeFirst();
  return row?.role;
}

export async function insertMembership(
  tx: Tx,
  org_id: OrgId,
  user_id: UserId,
  role: Role,
  by_groups = false,
): Promise<void> {
  await tx.insertInto('memberships').values({ org_id, user_id, role, by_groups }).execute();
}

/** The memberships of a user. */
export async function membershipsOf(tx: Tx, user_id: UserId) {
  return tx
    .selectFrom('memberships')
    .select(['org_id', 'role', 'by_groups'])
    .where('user_id', '=', user_id)
    .execute();
}

export async function updateRole(tx: Tx, org_id: OrgId, user_id: UserId, role: Role): Promise<void> {
  await tx
    .updateTable('memberships')
    .set({ role })
    .where('org_id', '=', org_id)
    .where('user_id', '=', user_id)
    .execute();
}

/** Prevents new references to the membership until the transaction ends. */
export async function lockMembership(tx: Tx, org_id: OrgId, user_id: UserId): Promise<void> {
  await tx
    .selectFrom('memberships')
    .select('role')
    .where('org_id', '=', org_id)
    .where('user_id', '=', user_id)
    .forUpdate()
    .execute();
}

export async function deleteMembership(tx: Tx, org_id: OrgId, user_id: UserId): Promise<void> {
  await tx.deleteFrom('memberships').where('org_id', '=', org_id).where('user_id', '=', user_id).execute();
}

export async function countMembers(tx: Tx, org_id: OrgId): Promise<{ members: number; owners: number }> {
  const { rows } = await sql<{ members: number; owners: number }>`
    select count(*) as members, count(*) filter (where role = 'owner') as owners
    from memberships where org_id = ${org_id}`.execute(tx);
  return present(rows[0], 'count of members');
}

/** The organisations of a user, in locking order. */
export async function organisationsOf(tx: Tx, user_id: UserId): Promise<OrgId[]> {
  const rows = await tx
    .selectFrom('memberships')
    .select('org_id')
    .where('user_id', '=', user_id)
    .orderBy('org_id')
    .execute();
  return rows.map((row) => row.org_id);
}

/** Removes a user's SSH keys from the explicit key sets of the organisation's instances. */
export async function dropFromKeySets(tx: Tx, org_id: OrgId, user_id: UserId): Promise<void> {
  await sql`
    with gone as (
      delete from instance_ssh_keys s using instances i, ssh_keys k
      where i.id = s.instance_id and k.id = s.ssh_key_id and i.org_id = ${org_id} and k.user_id = ${user_id}
      returning s.instance_id
    )
    update instances set version = version + 1, updated_at = now()
    where id in (select instance_id from gone)`.execute(tx);
}
