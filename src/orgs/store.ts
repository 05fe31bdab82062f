/** Organisations. Their members, invitations and quotas have stores of their own beside this one. */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import type { OrgId, UserId } from '../lib/ids.ts';
import type { OwnQuotas } from '../lib/quotas.ts';

const SHOWN = ['id', 'name', 'billing_email', 'created_at'] as const;

export type OrganisationRow = Awaited<ReturnType<typeof insertOrganisation>>;

export interface NewOrganisation {
  readonly id: OrgId;
  readonly name: string;
  readonly billing_email: string;
  readonly created_by: UserId;
  readonly quotas: OwnQuotas;
}

export async function insertOrganisation(tx: Tx, { quotas, ...organisation }: NewOrganisation) {
  return tx
    .insertInto('organisations')
    .values({ ...organisation, quotas: JSON.stringify(quotas) })
    .returning(SHOWN)
    .executeTakeFirstOrThrow();
}

/** The organisations that a user has made and that still exist. */
export async function countMadeBy(tx: Tx, user_id: UserId): Promise<number> {
  const row = await tx
    .selectFrom('organisations')
    .select(sql<number>`count(*)`.as('count'))
    .where('created_by', '=', user_id)
    .executeTakeFirstOrThrow();
  return row.count;
}

export async function findOrganisation(tx: Tx, id: OrgId) {
  return tx.selectFrom('organisations').select(SHOWN).where('id', '=', id).executeTakeFirst();
}

/**
 * Holds the organisation until the transaction's end: whoever changes its members, or makes what counts against its
 * quotas, comes one after the other. Others may go on to refer to it. It is taken after an instance's lock; a member's
 * removal alone comes to instances later, and where that meets a start, PostgreSQL ends one and `transaction` tries again.
 */
export async function lockOrganisation(tx: Tx, id: OrgId) {
  return tx
    .selectFrom('organisations')
    .select(SHOWN)
    .where('id', '=', id)
    .forNoKeyUpdate()
    .executeTakeFirst();
}

/**
 * Those that a user is a member of, the ones joined last first: the end of the list is where a session acts by itself.
 * @param before a `position` of this list: `<microseconds of joining>.org_…`
 */
export async function listOrganisations(tx: Tx, user_id: UserId, before: string | null, limit: number) {
  let query = tx
    .selectFrom('organisations as o')
    .innerJoin('memberships as m', 'm.org_id', 'o.id')
    .select(['o.id', 'o.name', 'o.billing_email', 'o.created_at'])
    .select(
      sql<string>`(extract(epoch from m.created_at) * 1000000)::bigint || '.' || m.org_id`.as('position'),
    )
    .where('m.user_id', '=', user_id);
  if (before !== null) {
    const [micros, org_id] = before.split('.');
    query = query.where(
      sql<boolean>`(m.created_at, m.org_id) <
        (timestamptz 'epoch' + ${micros}::bigint * interval '1 microsecond', ${org_id})`,
    );
  }
  return query.orderBy('m.created_at', 'desc').orderBy('m.org_id', 'desc').limit(limit).execute();
}

export async function updateOrganisation(
  tx: Tx,
  id: OrgId,
  change: { readonly name: string } | { readonly billing_email: string },
) {
  return tx
    .updateTable('organisations')
    .set(change)
    .where('id', '=', id)
    .returning(SHOWN)
    .executeTakeFirstOrThrow();
}

/** Every instance that has a row: one that is being deleted still is the organisation's. */
export async function countInstances(tx: Tx, org_id: OrgId): Promise<number> {
  const row = await tx
    .selectFrom('instances')
    .select(sql<number>`count(*)`.as('count'))
    .where('org_id', '=', org_id)
    .executeTakeFirstOrThrow();
  return row.count;
}

/**
 * With memberships, keys, service accounts and invitations (foreign keys), its events, and its service accounts'
 * notifications; the audit log stays.
 */
export async function deleteOrganisation(tx: Tx, id: OrgId): Promise<void> {
  await tx.deleteFrom('events').where('org_id', '=', id).execute();
  // From now on it gets no service account any more.
  await tx.selectFrom('organisations').select('id').where('id', '=', id).forUpdate().execute();
  const accounts = await tx.deleteFrom('service_accounts').where('org_id', '=', id).returning('id').execute();
  const ids = accounts.map((account) => account.id);
  // After them: whoever raises some holds the account.
  if (ids.length > 0) await tx.deleteFrom('notifications').where('recipient', 'in', ids).execute();
  await tx.deleteFrom('organisations').where('id', '=', id).execute();
}

/** The one that the installation began with, the first administrator's; the oldest, where that is gone. */
export async function findFirstOrg(tx: Tx): Promise<OrgId | null> {
  const row = await tx.selectFrom('organisations').select('id').orderBy('id').limit(1).executeTakeFirst();
  return row?.id ?? null;
}
