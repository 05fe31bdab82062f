/** SQL of invitations, which are open for 7 days. */
import { sql } from 'kysely';
import type { InvitationId, OrgId, UserId } from '../../shared/ids.ts';
import type { Role } from '../../shared/roles.ts';
import type { Tx } from '../db/pool.ts';

const SHOWN = ['id', 'email', 'role', 'invited_by', 'created_at', 'expires_at'] as const;
const OPEN = sql<boolean>`expires_at > now()`;
export const INVITATION_LIFETIME_DAYS = 7;

export type InvitationRow = Awaited<ReturnType<typeof insertInvitation>>;

export interface NewInvitation {
  readonly id: InvitationId;
  readonly org_id: OrgId;
  readonly email: string;
  readonly role: Role;
  readonly token_hash: Buffer;
  readonly invited_by: UserId;
}

export async function insertInvitation(tx: Tx, invitation: NewInvitation) {
  return tx
    .insertInto('invitations')
    .values({
      ...invitation,
      expires_at: sql<Date>`date_trunc('milliseconds', now()) + make_interval(days => ${INVITATION_LIFETIME_DAYS})`,
    })
    .returning(SHOWN)
    .executeTakeFirstOrThrow();
}

/** The open invitations. */
export async function listInvitations(tx: Tx, org_id: OrgId, before: string | null, limit: number) {
  let query = tx.selectFrom('invitations').select(SHOWN).where('org_id', '=', org_id).where(OPEN);
  if (before !== null) query = query.where('id', '<', before as InvitationId);
  return query.orderBy('id', 'desc').limit(limit).execute();
}

/** The open invitation of an address. */
export async function findInvitationOf(tx: Tx, org_id: OrgId, email: string) {
  return tx
    .selectFrom('invitations')
    .select(SHOWN)
    .where('org_id', '=', org_id)
    .where(sql<boolean>`lower(email) = ${email.toLowerCase()}`)
    .where(OPEN)
    .executeTakeFirst();
}

/** Whether some organisation has invited the address. */
export async function isInvited(tx: Tx, email: string): Promise<boolean> {
  const row = await tx
    .selectFrom('invitations')
    .select('id')
    .where(sql<boolean>`lower(email) = ${email.toLowerCase()}`)
    .where(OPEN)
    .limit(1)
    .executeTakeFirst();
  return row !== undefined;
}

export async function countInvitations(tx: Tx, org_id: OrgId): Promise<number> {
  const row = await tx
    .selectFrom('invitations')
    .select(sql<number>`count(*)`.as('count'))
    .where('org_id', '=', org_id)
    .where(OPEN)
    .executeTakeFirstOrThrow();
  return row.count;
}

export async function findInvitationByToken(tx: Tx, token_hash: Buffer) {
  return tx
    .selectFrom('invitations')
    .select(['id', 'org_id', 'email', 'role'])
    .where('token_hash', '=', token_hash)
    .where(OPEN)
    .executeTakeFirst();
}

/** Consumes an open invitation; true for only one transaction. */
export async function takeInvitation(tx: Tx, id: InvitationId): Promise<boolean> {
  const gone = await tx
    .deleteFrom('invitations')
    .where('id', '=', id)
    .where(OPEN)
    .returning('id')
    .executeTakeFirst();
  return gone !== undefined;
}

export async function deleteInvitation(tx: Tx, org_id: OrgId, id: InvitationId) {
  return tx
    .deleteFrom('invitations')
    .where('org_id', '=', org_id)
    .where('id', '=', id)
    .where(OPEN)
    .returning(SHOWN)
    .executeTakeFirst();
}

/** Deletes a member's open invitations that `role` (null: no longer a member) could not make. */
export async function deleteInvitationsBeyond(
  tx: Tx,
  org_id: OrgId,
  user_id: UserId,
  role: Role | null,
): Promise<void> {
  if (role === 'owner') return;
  let query = tx.deleteFrom('invitations').where('org_id', '=', org_id).where('invited_by', '=', user_id);
  if (role === 'admin') query = query.where('role', '=', 'owner');
  await query.execute();
}

export async function deleteExpiredInvitations(tx: Tx): Promise<void> {
  await tx.deleteFrom('invitations').where('expires_at', '<', sql<Date>`now()`).execute();
}
