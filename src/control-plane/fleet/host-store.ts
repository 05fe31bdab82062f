/**
 * SQL of hosts: their heartbeats and facts, the slots of instances on them, what VMs use of them, and their leases.
 * Also reads the hosts as a placement sees them (`listCandidates`).
 */
import { sql } from 'kysely';
import { HostFacts } from '../../protocol/host-types.ts';
import { conforms } from '../../protocol/schemas.ts';
import { DEFAULT_LEASE_MS } from '../../protocol/types.ts';
import { type HostId, type InstanceId, newId, type OrgId, type VmId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Candidate, Capacity } from './choose-host.ts';
import type { LeaseState } from './lease-monitor.ts';

/** A host without a heartbeat for this long gets no new VM. */
export const HOST_FRESH_SECONDS = 20;

/** A host that was seen then is silent now. */
const SEEN_BEFORE = sql<Date>`now() - make_interval(secs => ${HOST_FRESH_SECONDS})`;

/** There is a host of this name with another token: another data folder. */
export class HostTakenError extends Error {
  override name = 'HostTakenError';
}

/**
 * The host of this name and token; inserted if there is none of the name. However long a host is silent, another data folder does not
 * take it: its VMs may still run. @throws HostTakenError
 */
export async function ensureHost(tx: Tx, name: string, token_hash: Buffer): Promise<HostId> {
  const inserted = await tx
    .insertInto('hosts')
    .values({ id: newId('host'), name, token_hash, last_seen_at: null, facts: null })
    .onConflict((conflict) => conflict.column('name').where('removed_at', 'is', null).doNothing())
    .returning('id')
    .executeTakeFirst();
  if (inserted) return inserted.id;
  const row = await tx
    .selectFrom('hosts')
    .select('id')
    .where('name', '=', name)
    .where('token_hash', '=', token_hash)
    .where('removed_at', 'is', null)
    .executeTakeFirst();
  if (!row) throw new HostTakenError(`the host ${name} has another token`);
  return row.id;
}

export async function recordHeartbeat(tx: Tx, id: HostId, facts: HostFacts): Promise<void> {
  await tx
    .updateTable('hosts')
    .set({ last_seen_at: sql`now()`, facts: JSON.stringify(facts) })
    .where('id', '=', id)
    .execute();
}

/** The version of the agent protocol that it speaks; 0: it sent none. */
export async function setProtocol(tx: Tx, id: HostId, protocol: number): Promise<void> {
  await tx.updateTable('hosts').set({ protocol }).where('id', '=', id).execute();
}

/**
 * This machine's own host reports its capacity. A remote host is not trusted to attract VMs: its capacity is
 * what the operator set, or less if it reports less. Null: the operator has not set it yet.
 */
export function capacityOf(host: {
  readonly remote: boolean;
  readonly facts: Pick<HostFacts, 'cpus' | 'memory_mib'>;
  readonly cpus: number | null;
  readonly memory_mib: number | null;
}): Capacity | null {
  const { remote, facts, cpus, memory_mib } = host;
  if (!remote) return { cpus: null, memory_mib: facts.memory_mib };
  if (cpus === null || memory_mib === null) return null;
  return { cpus: Math.min(cpus, facts.cpus), memory_mib: Math.min(memory_mib, facts.memory_mib) };
}

export interface LiveHost {
  readonly id: HostId;
  readonly remote: boolean;
  readonly facts: HostFacts;
}

/** Whether the host has no recent heartbeat or was removed, and is not lost: its VMs may still run. */
export async function isDisconnected(tx: Tx, id: HostId): Promise<boolean> {
  const row = await tx
    .selectFrom('hosts')
    .select('id')
    .where('id', '=', id)
    .where('lost_at', 'is', null)
    .where((eb) => eb.or([eb('last_seen_at', '<=', SEEN_BEFORE), eb('removed_at', 'is not', null)]))
    .executeTakeFirst();
  return row !== undefined;
}

/** Those without a recent sign of life. */
export async function listSilent(tx: Tx, ids: readonly HostId[]): Promise<HostId[]> {
  const rows = await tx
    .selectFrom('hosts')
    .select('id')
    .where('id', 'in', ids)
    .where('last_seen_at', '<=', SEEN_BEFORE)
    .execute();
  return rows.map(({ id }) => id);
}

/** All hosts that are not removed. */
export async function listHostIds(tx: Tx): Promise<HostId[]> {
  const rows = await tx
    .selectFrom('hosts')
    .select('id')
    .where('removed_at', 'is', null)
    .orderBy('id')
    .execute();
  return rows.map(({ id }) => id);
}

/** The facts that hosts last reported. */
export async function listHostFacts(tx: Tx): Promise<{ readonly name: string; readonly facts: HostFacts }[]> {
  const rows = await tx
    .selectFrom('hosts')
    .select(['name', 'facts'])
    .where('lost_at', 'is', null)
    .where('removed_at', 'is', null)
    .orderBy('name')
    .execute();
  return rows.flatMap(({ name, facts }) => (facts === null ? [] : [{ name, facts }]));
}

/** Connected hosts. */
export async function listLiveHosts(tx: Tx): Promise<LiveHost[]> {
  const rows = await tx
    .selectFrom('hosts')
    .select(['id', 'remote', 'facts'])
    .where('last_seen_at', '>', SEEN_BEFORE)
    .where('facts', 'is not', null)
    .where('lost_at', 'is', null)
    .where('removed_at', 'is', null)
    .orderBy('id')
    .execute();
  // Another version may have stored other facts.
  return rows.flatMap(({ facts, ...row }) =>
    facts !== null && conforms(HostFacts, facts) ? [{ ...row, facts }] : [],
  );
}

// Slots: what identifies an instance's VMs on a host. Their user, TAP device and own address derive from it. An instance keeps
// its slot on a host for life, because its files there belong to that user; on another host it may have another.

/**
 * Gives the instance a slot on the host, unless it has one: the number of its SSH port, or the lowest free one. False: all 65,535
 * are given away. The caller has locked the host's use, so nobody else gives away a slot of it.
 */
export async function keepSlot(tx: Tx, host_id: HostId, instance_id: InstanceId): Promise<boolean> {
  const kept = await tx
    .selectFrom('host_slots')
    .select('slot')
    .where('host_id', '=', host_id)
    .where('instance_id', '=', instance_id)
    .executeTakeFirst();
  if (kept) return true;
  const { numAffectedRows } = await sql`
    insert into host_slots (host_id, instance_id, slot)
    select ${host_id}, i.id, free.slot
    from instances i, lateral (
      select coalesce(
        (select i.ssh_port where not exists (
          select from host_slots taken where taken.host_id = ${host_id} and taken.slot = i.ssh_port)),
        -- Rarely needed: it reads the host's slots.
        (select slot from (
          select 1 as slot union all select slot + 1 from host_slots where host_id = ${host_id} and slot < 65535
        ) candidates
        where not exists (
          select from host_slots taken where taken.host_id = ${host_id} and taken.slot = candidates.slot)
        order by slot limit 1)) as slot
    ) free
    where i.id = ${instance_id} and free.slot is not null`.execute(tx);
  return numAffectedRows === 1n;
}

// What VMs use of each host, as counters, and the hosts as a placement sees them.

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
      -- Another version may have stored other facts.
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
 * Counts the VMs of a host again, and says whether the counters were wrong. Every change of a VM's use takes the same lock, so
 * none is missed.
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

// Leases of hosts, as the database knows them. `lease-monitor.ts` decides which have expired.

/**
 * Renews the lease of `kept_ms` that the host has, and returns the lease for it to have: `lease_ms`, or null while it is
 * the only host. A lost host is no longer lost.
 */
export async function renewLease(
  tx: Tx,
  id: HostId,
  kept_ms: number | null,
  lease_ms: number,
): Promise<number | null> {
  // In one statement, because every host renews every few seconds. This machine's own host counts after its first heartbeat.
  const { rows } = await sql<{ is_alone: boolean }>`
    with fleet as (
      select exists (
        select from hosts where id <> ${id} and removed_at is null and (remote or last_seen_at is not null)
      ) as has_others
    )
    update hosts set beat = beat + 1, last_seen_at = now(), lost_at = null,
      -- The only host cannot expire, even before it learns so.
      lease_ms = case when fleet.has_others then ${kept_ms}::int end
    from fleet where id = ${id} returning not fleet.has_others as is_alone`.execute(tx);
  return rows[0]?.is_alone === false ? lease_ms : null;
}

/**
 * Hosts that can expire: those with a lease, and removed ones. A removed host that had none, as the only one, pauses its VMs when its
 * credential is refused for the default lease.
 */
export async function listLeases(tx: Tx): Promise<LeaseState[]> {
  const rows = await tx
    .selectFrom('hosts')
    .select(['id', 'name', 'beat'])
    .select((eb) => eb.fn.coalesce('lease_ms', sql<number>`${DEFAULT_LEASE_MS}::int`).as('lease_ms'))
    .select(sql<boolean>`lost_at is not null`.as('lost'))
    .where((eb) => eb.or([eb('lease_ms', 'is not', null), eb('removed_at', 'is not', null)]))
    .execute();
  return rows;
}

/**
 * Marks the host as lost unless it has renewed since `beat`. A renewal waits until the transaction's end. Lock order:
 * instances before hosts.
 */
export async function markLost(tx: Tx, id: HostId, beat: number): Promise<'lost' | 'already' | 'renewed'> {
  const row = await tx
    .selectFrom('hosts')
    .select(['lost_at'])
    .where('id', '=', id)
    .where('beat', '=', beat)
    .forUpdate()
    .executeTakeFirst();
  if (!row) return 'renewed';
  if (row.lost_at !== null) return 'already';
  await tx.updateTable('hosts').set({ lost_at: sql`now()` }).where('id', '=', id).execute();
  return 'lost';
}

export async function isHostLost(tx: Tx, id: HostId): Promise<boolean> {
  const row = await tx.selectFrom('hosts').select('lost_at').where('id', '=', id).executeTakeFirst();
  return row !== undefined && row.lost_at !== null;
}
