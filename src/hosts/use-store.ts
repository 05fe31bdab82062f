/** What VMs use of each host, as counters, and the hosts as a placement sees them. */
import { sql } from 'kysely';
import { fits } from '../agent-api/check.ts';
import { HostFacts } from '../agent-api/host-types.ts';
import type { Tx } from '../db/pool.ts';
import type { HostId, OrgId, VmId } from '../lib/ids.ts';
import type { Candidate } from './placement.ts';
import { capacityOf, HOST_FRESH_SECONDS } from './store.ts';

/** Connected hosts, or `only` one. Read without a lock. */
export async function listCandidates(
  tx: Tx,
  org_id: OrgId,
  only: HostId | null = null,
): Promise<Candidate[]> {
  const rows = await tx
    .selectFrom('hosts as h')
    .leftJoin('host_use as u', 'u.host_id', 'h.id')
    .leftJoin('host_org_use as o', (join) => join.onRef('o.host_id', '=', 'h.id').on('o.org_id', '=', org_id))
    .select(['h.id', 'h.facts', 'h.cordoned', 'h.remote', 'h.cpus', 'h.memory_mib', 'h.labels', 'h.taints'])
    .select(['u.memory_mib as used_memory_mib', 'o.vms as org_vms'])
    .where('h.last_seen_at', '>', sql<Date>`now() - make_interval(secs => ${HOST_FRESH_SECONDS})`)
    .where('h.facts', 'is not', null)
    .where('h.lost_at', 'is', null)
    .where('h.removed_at', 'is', null)
    .$if(only !== null, (query) => query.where('h.id', '=', only))
    .execute();
  return rows.flatMap(({ id, facts, cordoned, labels, taints, org_vms, used_memory_mib, ...row }) => {
    // An earlier version stored facts without validating them.
    if (facts === null || !fits(HostFacts, facts)) return [];
    return [
      {
        ...{ id, cordoned, labels, taints },
        capacity: capacityOf({ ...row, facts }),
        used_memory_mib: used_memory_mib ?? 0,
        org_vms: org_vms ?? 0,
        images: facts.images.map((image) => image.id),
        // An agent that knows no policies does not say that it enforces them.
        enforces_egress: facts.enforces_egress === true,
        machine: facts.machine ?? null,
      },
    ];
  });
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
