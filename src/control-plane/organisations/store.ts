/**
 * SQL of organisations, and of how many streams each has open at each control plane. Members, invitations and quotas
 * have their own stores.
 */
import { sql } from 'kysely';
import type { OrgId, UserId } from '../../shared/ids.ts';
import type { OwnQuotas } from '../../shared/quotas.ts';
import type { Tx } from '../db/pool.ts';

const SHOWN = ['id', 'name', 'billing_email', 'created_at', 'operator'] as const;

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

/** The existing organisations that a user has created. */
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
 * Locks the organisation until the transaction ends. Changes of members and checks of limited quotas take this lock; new
 * references to the organisation do not wait for it. Take it after an instance's lock. Only the removal of a member
 * locks instances later; if that meets a start, PostgreSQL aborts one and `transaction` retries it.
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
 * The organisations of a user, the most recently joined first. A session acts in the last one by default.
 * @param before a `position` of this list: `<microseconds of joining>.org_…`
 */
export async function listOrganisations(tx: Tx, user_id: UserId, before: string | null, limit: number) {
  let query = tx
    .selectFrom('organisations as o')
    .innerJoin('memberships as m', 'm.org_id', 'o.id')
    .select(['o.id', 'o.name', 'o.billing_email', 'o.created_at', 'o.operator'])
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

/** Counts every instance with a row, also those being deleted. */
export async function countInstances(tx: Tx, org_id: OrgId): Promise<number> {
  const row = await tx
    .selectFrom('instances')
    .select(sql<number>`count(*)`.as('count'))
    .where('org_id', '=', org_id)
    .executeTakeFirstOrThrow();
  return row.count;
}

/**
 * Deletes the organisation with memberships, keys, service accounts and invitations (foreign keys), its events, and its
 * service accounts' notifications. The audit log remains.
 */
export async function deleteOrganisation(tx: Tx, id: OrgId): Promise<void> {
  await tx.deleteFrom('events').where('org_id', '=', id).execute();
  // From here on it gets no new service account.
  await tx.selectFrom('organisations').select('id').where('id', '=', id).forUpdate().execute();
  const accounts = await tx.deleteFrom('service_accounts').where('org_id', '=', id).returning('id').execute();
  const ids = accounts.map((account) => account.id);
  // After the accounts: raising notifications locks an account.
  if (ids.length > 0) await tx.deleteFrom('notifications').where('recipient', 'in', ids).execute();
  await tx.deleteFrom('organisations').where('id', '=', id).execute();
}

/** The first administrator's organisation; if it was deleted, the oldest one. */
export async function findFirstOrg(tx: Tx): Promise<OrgId | null> {
  const row = await tx.selectFrom('organisations').select('id').orderBy('id').limit(1).executeTakeFirst();
  return row?.id ?? null;
}

/** Whether the organisation's owners and admins operate the installation. */
export async function isOperator(tx: Tx, id: OrgId): Promise<boolean> {
  const row = await tx.selectFrom('organisations').select('operator').where('id', '=', id).executeTakeFirst();
  return row?.operator === true;
}

// Open streams and consoles, by organisation and control plane.

/** A control plane says every 2 s that it lives. One that was not seen for so long counts as ended; before that, it may have. */
const LIVE_SECONDS = 6;
const SILENT_SECONDS = 3;

const seenWithin = (seconds: number) => sql`seen_at > now() - make_interval(secs => ${sql.lit(seconds)})`;

/** A condition on rows of `open_streams`: their control plane lives. */
export const isSeen = seenWithin(LIVE_SECONDS);

/** Adds to the number that the control plane holds for the organisation. */
export async function addStreams(tx: Tx, control_plane: string, org_id: OrgId, more: 1 | -1): Promise<void> {
  await sql`
    insert into open_streams as s (org_id, control_plane, count) values (${org_id}, ${control_plane}, ${Math.max(0, more)})
    on conflict (org_id, control_plane) do update set count = greatest(0, s.count + ${more}), seen_at = now()`.execute(
    tx,
  );
}

/** The control plane lives, and holds exactly these of the named organisations. */
export async function renewStreams(
  tx: Tx,
  control_plane: string,
  held: ReadonlyMap<OrgId, number>,
): Promise<void> {
  await sql`
    insert into open_streams (org_id, control_plane, count)
    select org_id, ${control_plane}, count
    from unnest(${[...held.keys()]}::text[], ${[...held.values()]}::integer[]) as held (org_id, count) order by org_id
    on conflict (org_id, control_plane) do update set count = excluded.count, seen_at = now()`.execute(tx);
}

/** Whether streams of the organisation count that may be of a control plane that has just ended. */
export async function hasSilentStreams(tx: Tx, org_id: OrgId): Promise<boolean> {
  const { rows } = await sql`
    select from open_streams
    where org_id = ${org_id} and count > 0 and ${isSeen} and not ${seenWithin(SILENT_SECONDS)} limit 1`.execute(
    tx,
  );
  return rows.length > 0;
}

export async function deleteStreamsOf(tx: Tx, control_plane: string): Promise<void> {
  await tx.deleteFrom('open_streams').where('control_plane', '=', control_plane).execute();
}

/** For the sweep: of control planes that have ended, and of organisations that have none open. */
export async function deleteUnseenStreams(tx: Tx): Promise<void> {
  await sql`delete from open_streams where seen_at < now() - interval '1 minute'`.execute(tx);
}
