/** What VMs use of each host, as counters, and the hosts as a placement sees them. */
import { sql } from 'kysely';
import type { HostId, OrgId, VmId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { capacityOf, HOST_FRESH_SECONDS } from './host-store.ts';
import type { Candidate } from './placement.ts';

interface Row extends Omit<Candidate, 'capacity'> {
  readonly remote: boolean;
  readonly cpus: number | null;
  readonly memory_mib: number | null;
  readonly has_cpus: number;
  readonly has_memory_mib: number;
}

/** What a candidate is looked at for. */
export interface Sought {
  readonly org_id: OrgId;
  /** Null: any host can get it. */
  readonly image: string | null;
}

/**
 * Connected hosts, or `only` one, in a random order: simultaneous placements then do not all choose, and wait for, the same one of
 * many equal hosts. Read without a lock. Of the facts only what a placement needs: there are hundreds of hosts.
 */
export async function listCandidates(
  tx: Tx,
  sought: Sought,
  only: HostId | null = null,
): Promise<Candidate[]> {
  const image = sought.image === null ? null : JSON.stringify([{ id: sought.image }]);
  const { rows } = await sql<Row>`
    select h.id, h.cordoned, h.remote, h.cpus, h.memory_mib, h.labels, h.taints,
      coalesce(u.memory_mib, 0) as used_memory_mib, coalesce(o.vms, 0) as org_vms,
      (h.facts->>'cpus')::float8 as has_cpus, (h.facts->>'memory_mib')::float8 as has_memory_mib,
      h.facts->>'machine' as machine, ${image}::jsonb is null or h.facts->'images' @> ${image}::jsonb as has_image,
      -- An agent that knows no policies does not say that it enforces them.
      coalesce(h.facts->'enforces_egress' = 'true', false) as enforces_egress,
      h.facts->>'object_store_problem' as store_problem
    from hosts h
    left join host_use u on u.host_id = h.id
    left join host_org_use o on o.host_id = h.id and o.org_id = ${sought.org_id}
    where h.last_seen_at > now() - make_interval(secs => ${HOST_FRESH_SECONDS})
      and h.facts is not null and h.lost_at is null and h.removed_at is null
      -- An earlier version stored facts without validating them.
      and jsonb_typeof(h.facts->'cpus') = 'number' and jsonb_typeof(h.facts->'memory_mib') = 'number'
      and (${only}::text is null or h.id = ${only})
    order by random()`.execute(tx);
  return rows.map(({ remote, cpus, memory_mib, has_cpus, has_memory_mib, ...row }) => ({
    ...row,
    capacity: capacityOf({ remote, cpus, memory_mib, facts: { cpus: has_cpus, memory_mib: has_memory_mib } }),
  }));
}

/** What hosts share that can resume each other's memory; null: the host does not say. */
export async function machineOf(tx: Tx, id: HostId): Promise<string | null> {
  const row = await tx.selectFrom('hosts').select('facts').where('id', '=', id).executeTakeFirst();
  return row?.facts?.machine ?? null;
}

/** Locks the use of the host until the transaction's end: no placement there, and no end of a VM, commits meanwhile. */
export async function lockUse(tx: Tx, id: HostId): Promise<void> {
  const lock = () =>
    tx.selectFrom('host_use').select('host_id').where('host_id', '=', id).forUpdate().executeTakeFirst();
  if (await lock()) return;
  await sql`insert into host_use (host_id) values (${id}) on conflict do nothing`.execute(tx);
  await lock();
}

/** A lock that is kept while another host is tried could end in a deadlock: {@link releaseLock} releases those taken since. */
export async function saveBeforeLock(tx: Tx): Promise<void> {
  await sql`savepoint placement`.execute(tx);
}

export async function releaseLock(tx: Tx): Promise<void> {
  await sql`rollback to savepoint placement`.execute(tx);
}

/** Adds a VM to its host's use (1), or takes it away (-1). Not one that its host has released. */
export async function countUse(tx: Tx, vm_id: VmId, sign: 1 | -1): Promise<void> {
  // The host's row first, as a placement does.
  await sql`
    insert into host_use (host_id, vms, memory_mib)
    select v.host_id, ${sign}::int, ${sign}::int * i.memory_mib
    from vms v join instances i on i.id = v.instance_id where v.id = ${vm_id} and not v.released
    on conflict (host_id) do update set vms = host_use.vms + excluded.vms,
      memory_mib = host_use.memory_mib + excluded.memory_mib`.execute(tx);
  await sql`
    insert into host_org_use (host_id, org_id, vms)
    select v.host_id, i.org_id, ${sign}::int
    from vms v join instances i on i.id = v.instance_id where v.id = ${vm_id} and not v.released
    on conflict (host_id, org_id) do update set vms = host_org_use.vms + excluded.vms`.execute(tx);
}

/**
 * Counts the VMs of a host again, and says whether the counters were wrong. A control plane of the version before places VMs
 * without counting them. Every change of a VM's use takes the same lock, so none is missed.
 */
export async function recountUse(tx: Tx, id: HostId): Promise<boolean> {
  await lockUse(tx, id);
  const before = await tx.selectFrom('host_use').selectAll().where('host_id', '=', id).executeTakeFirst();
  const { rows } = await sql<{ org_id: OrgId; vms: number; memory_mib: number }>`
    select i.org_id, count(*) as vms, sum(i.memory_mib)::bigint as memory_mib
    from vms v join instances i on i.id = v.instance_id
    where v.host_id = ${id} and v.state not in ('stopped', 'suspended', 'failed') and not v.released
    group by i.org_id`.execute(tx);
  const total = (of: 'vms' | 'memory_mib') => rows.reduce((sum, row) => sum + row[of], 0);
  const [vms, memory_mib] = [total('vms'), total('memory_mib')];
  await tx.updateTable('host_use').set({ vms, memory_mib }).where('host_id', '=', id).execute();
  await tx.deleteFrom('host_org_use').where('host_id', '=', id).execute();
  if (rows.length > 0)
    await tx
      .insertInto('host_org_use')
      .values(rows.map(({ org_id, vms: count }) => ({ host_id: id, org_id, vms: count })))
      .execute();
  return before?.vms !== vms || before.memory_mib !== memory_mib;
}
