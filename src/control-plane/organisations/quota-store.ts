/** SQL of quotas: the limits that are set for an organisation, and how much of each quota the organisation uses. */
import { type RawBuilder, sql } from 'kysely';
import { present } from '../../shared/assert.ts';
import type { OrgId } from '../../shared/ids.ts';
import {
  ORGANISATION_QUOTAS,
  type OrganisationQuota,
  type OwnQuotas,
  type QuotaLimits,
} from '../../shared/quotas.ts';
import type { Tx } from '../db/pool.ts';
import { isSeen } from './store.ts';

/** The limits set for the organisation; undefined if it does not exist. */
export async function findQuotas(tx: Tx, org_id: OrgId): Promise<OwnQuotas | undefined> {
  const row = await tx
    .selectFrom('organisations')
    .select('quotas')
    .where('id', '=', org_id)
    .executeTakeFirst();
  return row?.quotas;
}

/** The same, and locks the organisation as `lockOrganisation` does. */
export async function lockQuotas(tx: Tx, org_id: OrgId): Promise<OwnQuotas | undefined> {
  const row = await tx
    .selectFrom('organisations')
    .select('quotas')
    .where('id', '=', org_id)
    .forNoKeyUpdate()
    .executeTakeFirst();
  return row?.quotas;
}

/** VMs in these states use no resources. */
const IDLE_STATES = sql`('stopped', 'suspended', 'failed')`;

/** `org_id`: a value, or a reference to a column. */
function countOf(quota: OrganisationQuota, org_id: OrgId | RawBuilder<unknown>) {
  switch (quota) {
    case 'instances':
      return sql`(select count(*) from instances where org_id = ${org_id})`;
    case 'disk_gib':
      return sql`(select coalesce(sum(disk_gib), 0)::bigint from instances where org_id = ${org_id})`;
    case 'cpus':
    case 'memory_mib':
      // From the VMs that run, which are fewer than the instances.
      return sql`(
        select coalesce(sum(i.${sql.ref(quota)}), 0)::bigint from vms v
        join instances i on i.id = v.instance_id
        where v.state not in ${IDLE_STATES} and i.org_id = ${org_id}
          and not exists (select from vms newer where newer.instance_id = v.instance_id and newer.boot > v.boot))`;
    case 'api_keys':
    case 'service_accounts':
    case 'webhooks':
      return sql`(select count(*) from ${sql.table(quota)} where org_id = ${org_id})`;
    case 'streams':
      return sql`(select coalesce(sum(count), 0)::bigint from open_streams where org_id = ${org_id} and ${isSeen})`;
  }
}

/** What the organisation uses of each of these quotas. */
export async function countUsed<Q extends OrganisationQuota>(
  tx: Tx,
  org_id: OrgId,
  quotas: readonly Q[],
): Promise<Record<Q, number>> {
  const columns = quotas.map((quota) => sql`${countOf(quota, org_id)} as ${sql.ref(quota)}`);
  const { rows } = await sql<Record<Q, number>>`select ${sql.join(columns)}`.execute(tx);
  return present(rows[0], 'use of quotas');
}

export interface OrganisationUse extends Record<OrganisationQuota, number> {
  readonly id: OrgId;
  readonly name: string;
  readonly created_at: Date;
  readonly operator: boolean;
  readonly own: OwnQuotas;
  readonly members: number;
}

/** Organisations with what they use, newest first, after `before`. */
export async function listUse(tx: Tx, before: OrgId | null, limit: number): Promise<OrganisationUse[]> {
  const counts = ORGANISATION_QUOTAS.map(
    (quota) => sql`${countOf(quota, sql.ref('o.id'))} as ${sql.ref(quota)}`,
  );
  const { rows } = await sql<OrganisationUse>`
    select o.id, o.name, o.created_at, o.operator, o.quotas as own,
      (select count(*) from memberships m where m.org_id = o.id) as members, ${sql.join(counts)}
    from organisations o where ${before}::text is null or o.id < ${before}
    order by o.id desc limit ${limit}`.execute(tx);
  return rows;
}

/** Sets the limits of `set` and resets those of `reset` to the default. False if the organisation does not exist. */
export async function updateQuotas(
  tx: Tx,
  org_id: OrgId,
  set: OwnQuotas,
  reset: readonly OrganisationQuota[],
): Promise<boolean> {
  const { numUpdatedRows } = await tx
    .updateTable('organisations')
    .set({ quotas: sql`(quotas - ${[...reset]}::text[]) || ${JSON.stringify(set)}::jsonb` })
    .where('id', '=', org_id)
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

const UNLIMITED_MAX = 1_000;

/** Organisations other than the first with an unlimited quota, and which quotas; oldest first, up to a bound. */
export async function listUnlimited(
  tx: Tx,
  defaults: QuotaLimits,
): Promise<{ readonly id: OrgId; readonly quotas: readonly OrganisationQuota[] }[]> {
  const own = (quota: OrganisationQuota) => sql`quotas -> ${sql.lit(quota)}`;
  const unlimited = ORGANISATION_QUOTAS.map((quota) =>
    defaults[quota] === null
      ? sql<boolean>`coalesce(${own(quota)}, 'null') = 'null'`
      : sql<boolean>`${own(quota)} = 'null'`,
  );
  const rows = await tx
    .selectFrom('organisations')
    .select(['id', 'quotas'])
    .where('id', '>', (eb) => eb.selectFrom('organisations').select(eb.fn.min('id').as('first')))
    .where((eb) => eb.or(unlimited))
    .orderBy('id')
    .limit(UNLIMITED_MAX)
    .execute();
  return rows.map(({ id, quotas }) => ({
    id,
    quotas: ORGANISATION_QUOTAS.filter((quota) => ({ ...defaults, ...quotas })[quota] === null),
  }));
}
