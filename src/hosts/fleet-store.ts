/** Hosts on other machines, as the operator handles them. */
import { randomBytes } from 'node:crypto';
import { sql } from 'kysely';
import type { HostFacts } from '../agent-api/host-types.ts';
import type { Tx } from '../db/pool.ts';
import { type HostId, newId } from '../lib/ids.ts';

/** VMs that the removed host of this name had, and that nobody has given up yet, or whose flush somebody waits for. */
export async function countLeft(tx: Tx, name: string): Promise<number> {
  const { count } = await tx
    .selectFrom('hosts as h')
    .innerJoin('vms as v', 'v.host_id', 'h.id')
    .innerJoin('instances as i', 'i.id', 'v.instance_id')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('h.name', '=', name)
    .where('h.removed_at', 'is not', null)
    .where((eb) => {
      const flushes = eb.selectFrom('flushes as f').select('f.id').whereRef('f.vm_id', '=', 'v.id');
      return eb.or([
        eb('v.state', 'not in', ['stopped', 'suspended', 'failed']),
        eb.exists(flushes.where('f.state', 'in', ['queued', 'running'])),
      ]);
    })
    .where('i.deleting', '=', false)
    .executeTakeFirstOrThrow();
  return count;
}

/** What an operator gives out of a host on another machine; null: not set yet. */
export interface SetCapacity {
  readonly cpus: number | null;
  readonly memory_mib: number | null;
}

/** A new host, or one that was removed and comes back, as another machine may; null when there is one of that name. */
export async function insertRemoteHost(
  tx: Tx,
  name: string,
  token_hash: Buffer,
  { cpus, memory_mib }: SetCapacity,
): Promise<HostId | null> {
  const capacity = { cpus, memory_mib };
  const row = await tx
    .insertInto('hosts')
    .values({
      ...{ id: newId('host'), name, token_hash, last_seen_at: null, facts: null, remote: true },
      ...capacity,
    })
    .onConflict((conflict) =>
      conflict
        .column('name')
        .doUpdateSet({
          ...{ token_hash, removed_at: null, lost_at: null, draining: false, lease_ms: null },
          // Nothing is placed there before it is heard of.
          ...{ last_seen_at: null, facts: null, protocol: null, ...capacity },
        })
        .where('hosts.removed_at', 'is not', null),
    )
    .returning('id')
    .executeTakeFirst();
  return row?.id ?? null;
}

export interface FleetHost {
  readonly id: HostId;
  readonly name: string;
  readonly remote: boolean;
  readonly draining: boolean;
  readonly lost_at: Date | null;
  readonly last_seen_at: Date | null;
  readonly facts: HostFacts | null;
  readonly cpus: number | null;
  readonly memory_mib: number | null;
  readonly protocol: number | null;
  /** VMs that are not at rest. */
  readonly vms: number;
  readonly used_memory_mib: number;
}

/** All that are part of the fleet, by name. */
export async function listFleet(tx: Tx): Promise<FleetHost[]> {
  const { rows } = await sql<FleetHost>`
    select h.id, h.name, h.remote, h.draining, h.lost_at, h.last_seen_at, h.facts,
      h.cpus, h.memory_mib, h.protocol,
      count(v.id) as vms, coalesce(sum(i.memory_mib), 0) as used_memory_mib
    from hosts h
    left join vms v on v.host_id = h.id and v.state not in ('stopped', 'suspended', 'failed')
    left join instances i on i.id = v.instance_id
    where h.removed_at is null
    group by h.id order by h.name`.execute(tx);
  return rows;
}

export async function setCapacity(tx: Tx, id: HostId, { cpus, memory_mib }: SetCapacity): Promise<void> {
  await tx.updateTable('hosts').set({ cpus, memory_mib }).where('id', '=', id).execute();
}

export async function setDraining(tx: Tx, id: HostId, draining: boolean): Promise<void> {
  await tx.updateTable('hosts').set({ draining }).where('id', '=', id).execute();
}

/** Its token opens nothing from now on, and what still waits for it is given up. */
export async function markRemoved(tx: Tx, id: HostId): Promise<void> {
  await tx
    .updateTable('hosts')
    .set({ removed_at: sql`now()`, token_hash: randomBytes(32), draining: true })
    .where('id', '=', id)
    .execute();
}

/** Names of instances whose last boot there failed: what it wrote past their head may be there alone. */
export async function listUnsaved(tx: Tx, id: HostId): Promise<string[]> {
  const { rows } = await sql<{ name: string }>`
    select i.name from instances i
    join lateral (select host_id, state from vms where instance_id = i.id order by boot desc limit 1) v on true
    where v.host_id = ${id} and v.state = 'failed' and not i.deleting order by i.name`.execute(tx);
  return rows.map(({ name }) => name);
}
