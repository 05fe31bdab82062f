import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import { present } from '../lib/assert.ts';
import type { OrgId } from '../lib/ids.ts';

export const QUOTAS = ['instances', 'cpus', 'memory_mib', 'disk_gib'] as const;
export type Quota = (typeof QUOTAS)[number];

/** `limit` null: none. */
export type QuotaState = Record<Quota, { readonly limit: number | null; readonly used: number }>;
export type QuotaChange = Partial<Record<Quota, number | null>>;

/** What VMs in these states take is not a host's any more. */
const IDLE_STATES = sql`('stopped', 'suspended', 'failed')`;

/** Undefined when there is no such organisation. */
export async function loadQuota(tx: Tx, org_id: OrgId): Promise<QuotaState | undefined> {
  const limits = await tx
    .selectFrom('organisations')
    .select([
      'quota_instances as instances',
      'quota_cpus as cpus',
      'quota_memory_mib as memory_mib',
      'quota_disk_gib as disk_gib',
    ])
    .where('id', '=', org_id)
    .executeTakeFirst();
  if (!limits) return undefined;
  const { rows } = await sql<Record<Quota, number>>`
    select count(*) as instances,
           coalesce(sum(i.disk_gib), 0)::bigint as disk_gib,
           coalesce(sum(i.cpus) filter (where v.state not in ${IDLE_STATES}), 0)::bigint as cpus,
           coalesce(sum(i.memory_mib) filter (where v.state not in ${IDLE_STATES}), 0)::bigint as memory_mib
    from instances i
    left join lateral (
      select state from vms where instance_id = i.id order by boot desc limit 1
    ) v on true
    where i.org_id = ${org_id}`.execute(tx);
  const used = present(rows[0], 'use of quotas');
  const state = (quota: Quota) => ({ limit: limits[quota], used: used[quota] });
  return {
    instances: state('instances'),
    cpus: state('cpus'),
    memory_mib: state('memory_mib'),
    disk_gib: state('disk_gib'),
  };
}

const UNLIMITED_MAX = 1_000;

/** Organisations but the first that some quota does not limit, and which quotas; the oldest first, up to a bound. */
export async function listUnlimited(
  tx: Tx,
): Promise<{ readonly id: OrgId; readonly quotas: readonly Quota[] }[]> {
  const rows = await tx
    .selectFrom('organisations')
    .select(['id', 'quota_instances', 'quota_cpus', 'quota_memory_mib', 'quota_disk_gib'])
    .where('id', '>', (eb) => eb.selectFrom('organisations').select(eb.fn.min('id').as('first')))
    .where((eb) => eb.or(QUOTAS.map((quota) => eb(`quota_${quota}`, 'is', null))))
    .orderBy('id')
    .limit(UNLIMITED_MAX)
    .execute();
  return rows.map((row) => ({
    id: row.id,
    quotas: QUOTAS.filter((quota) => row[`quota_${quota}`] === null),
  }));
}

export async function updateQuota(tx: Tx, org_id: OrgId, change: QuotaChange): Promise<void> {
  const columns = Object.fromEntries(
    QUOTAS.filter((quota) => change[quota] !== undefined).map((quota) => [`quota_${quota}`, change[quota]]),
  );
  await tx
    .updateTable('organisations')
    .set({ id: org_id, ...columns })
    .where('id', '=', org_id)
    .execute();
}
