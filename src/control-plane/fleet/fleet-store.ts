/**
 * SQL of `hosts` for the operator: adds hosts on other machines, lists all, sets capacity and labels, and cordons,
 * drains and removes hosts.
 */
import { randomBytes } from 'node:crypto';
import { sql } from 'kysely';
import type { HostFacts } from '../../protocol/host-types.ts';
import { type HostId, newId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { newJoin } from './credential-store.ts';

/** What an operator allows VMs to use of a remote host; null: not set yet. */
export interface SetCapacity {
  readonly cpus: number | null;
  readonly memory_mib: number | null;
}

/** Inserts a host that may join with the token. A removed one of the name stays what it is. Null when the name is taken. */
export async function insertRemoteHost(
  tx: Tx,
  name: string,
  join_hash: Buffer,
  { cpus, memory_mib }: SetCapacity,
): Promise<HostId | null> {
  const row = await tx
    .insertInto('hosts')
    .values({
      id: newId('host'),
      name,
      ...newJoin(join_hash),
      token_hash: randomBytes(32),
      last_seen_at: null,
      facts: null,
      remote: true,
      cpus,
      memory_mib,
    })
    .onConflict((conflict) => conflict.column('name').where('removed_at', 'is', null).doNothing())
    .returning('id')
    .executeTakeFirst();
  return row?.id ?? null;
}

export interface FleetHost {
  readonly id: HostId;
  readonly name: string;
  readonly remote: boolean;
  /** Gets no new VM. */
  readonly cordoned: boolean;
  /** Its VMs are moved to other hosts. */
  readonly draining: boolean;
  /** How many VMs it had when its drain began. */
  readonly drain_vms: number | null;
  readonly labels: Readonly<Record<string, string>>;
  readonly taints: readonly string[];
  readonly lost_at: Date | null;
  readonly last_seen_at: Date | null;
  readonly facts: HostFacts | null;
  readonly cpus: number | null;
  readonly memory_mib: number | null;
  readonly protocol: number | null;
  /** It had joined, its credential was revoked, and it has not joined with the new token. */
  readonly refused: boolean;
  /** Null: it has no lease, as the only host. */
  readonly lease_ms: number | null;
  /** VMs that are not at rest. */
  readonly vms: number;
  readonly used_memory_mib: number;
}

/** All hosts of the fleet, by name. */
export async function listFleet(tx: Tx): Promise<FleetHost[]> {
  const { rows } = await sql<FleetHost>`
    select h.id, h.name, h.remote, h.cordoned, h.draining, h.drain_vms, h.labels, h.taints, h.lost_at, h.last_seen_at,
      h.facts, h.cpus, h.memory_mib, h.protocol, h.lease_ms,
      h.join_expires_at is not null and h.last_seen_at is not null as refused,
      coalesce(u.vms, 0) as vms, coalesce(u.memory_mib, 0) as used_memory_mib
    from hosts h left join host_use u on u.host_id = h.id
    where h.removed_at is null order by h.name`.execute(tx);
  return rows;
}

export async function setCapacity(tx: Tx, id: HostId, { cpus, memory_mib }: SetCapacity): Promise<void> {
  await tx.updateTable('hosts').set({ cpus, memory_mib }).where('id', '=', id).execute();
}

export async function setLabels(
  tx: Tx,
  id: HostId,
  { labels, taints }: Pick<FleetHost, 'labels' | 'taints'>,
): Promise<void> {
  await tx
    .updateTable('hosts')
    .set({ labels: JSON.stringify(labels), taints: [...taints] })
    .where('id', '=', id)
    .execute();
}

/** Call it under `lockUse`: no placement there that began before commits after it. */
export async function cordon(tx: Tx, id: HostId): Promise<void> {
  await tx.updateTable('hosts').set({ cordoned: true }).where('id', '=', id).execute();
}

/** Cordons it, and has the task `move-vms` move its VMs. */
export async function drain(tx: Tx, id: HostId, vms: number): Promise<void> {
  await tx
    .updateTable('hosts')
    .set({ cordoned: true, draining: true, drain_vms: vms })
    .where('id', '=', id)
    .execute();
}

/** VMs under way continue; the others stay. */
export async function uncordon(tx: Tx, id: HostId): Promise<void> {
  await tx
    .updateTable('hosts')
    .set({ cordoned: false, draining: false, drain_vms: null })
    .where('id', '=', id)
    .execute();
  await tx
    .updateTable('vms')
    .set({ move_problem: null, move_after: null })
    .where('host_id', '=', id)
    .where('state', '=', 'running')
    .execute();
}

/** Revokes its token. It is treated as a silent host: the task `expire-hosts` fails its VMs once its lease and the margin are over. */
export async function markHostRemoved(tx: Tx, id: HostId): Promise<void> {
  await tx
    .updateTable('hosts')
    .set({
      removed_at: sql`now()`,
      token_hash: randomBytes(32),
      next_token_hash: null,
      join_hash: null,
      cordoned: true,
    })
    .where('id', '=', id)
    .execute();
}

/** Of a database that was restored on another machine: removed and lost, because the caller fails all VMs. */
export async function giveUpLocalHost(tx: Tx): Promise<void> {
  const local = await tx
    .updateTable('hosts')
    .set({ lost_at: sql`now()` })
    .where('remote', '=', false)
    .where('removed_at', 'is', null)
    .returning('id')
    .execute();
  for (const { id } of local) await markHostRemoved(tx, id);
}

/** Names of instances whose last boot there failed: that host may have the only copy of their last writes. */
export async function listUnsaved(tx: Tx, id: HostId): Promise<string[]> {
  const { rows } = await sql<{ name: string }>`
    select i.name from instances i
    join lateral (select host_id, state from vms where instance_id = i.id order by boot desc limit 1) v on true
    where v.host_id = ${id} and v.state = 'failed' and not i.deleting order by i.name`.execute(tx);
  return rows.map(({ name }) => name);
}
