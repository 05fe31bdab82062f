import { sql } from 'kysely';
import { fits } from '../agent-api/check.ts';
import { HostFacts } from '../agent-api/host-types.ts';
import type { Tx } from '../db/pool.ts';
import { type HostId, newId } from '../lib/ids.ts';

/** A host without a heartbeat for this long gets no new VM. */
export const HOST_FRESH_SECONDS = 20;

export async function findHostByToken(tx: Tx, token_hash: Buffer) {
  return tx
    .selectFrom('hosts')
    .select(['id', 'name', 'remote', 'protocol'])
    .where('token_hash', '=', token_hash)
    .where('removed_at', 'is', null)
    .executeTakeFirst();
}

/** A host of this name with another token is connected. */
export class HostTakenError extends Error {
  override name = 'HostTakenError';
}

/** Inserts the host of this name, or replaces its token. @throws HostTakenError */
export async function upsertHost(tx: Tx, name: string, token_hash: Buffer): Promise<HostId> {
  const row = await tx
    .insertInto('hosts')
    .values({ id: newId('host'), name, token_hash, last_seen_at: null, facts: null })
    .onConflict((conflict) =>
      conflict
        .column('name')
        .doUpdateSet({ token_hash })
        .where((eb) =>
          eb.or([
            eb('hosts.token_hash', '=', token_hash),
            eb('hosts.last_seen_at', 'is', null),
            eb('hosts.last_seen_at', '<=', seenBefore()),
          ]),
        ),
    )
    .returning('id')
    .executeTakeFirst();
  if (!row) throw new HostTakenError(`the host ${name} is connected with another token`);
  return row.id;
}

const seenBefore = () => sql<Date>`now() - make_interval(secs => ${HOST_FRESH_SECONDS})`;

/** After a restore: the new machine's host takes the place of the one that was saved. */
export async function forgetLocalHeartbeat(tx: Tx): Promise<void> {
  await tx.updateTable('hosts').set({ last_seen_at: null }).where('remote', '=', false).execute();
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

/** Serialises placements until the transaction's end. Reads after it see every earlier placement. */
export async function lockPlacement(tx: Tx): Promise<void> {
  await sql`select pg_advisory_xact_lock(7400003)`.execute(tx);
}

/** What VMs may use of a host. */
export interface Capacity {
  /** The most that one VM may have; null: unlimited, as on this machine. */
  readonly cpus: number | null;
  readonly memory_mib: number;
}

/**
 * This machine's own host reports its capacity. A remote host is not trusted to attract VMs: its capacity is
 * what the operator set, or less if it reports less. Null: the operator has not set it yet.
 */
export function capacityOf(host: {
  readonly remote: boolean;
  readonly facts: HostFacts;
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
  readonly draining: boolean;
  readonly facts: HostFacts;
  readonly capacity: Capacity | null;
  /** Memory of the VMs placed there that are not stopped, MiB. */
  readonly used_memory_mib: number;
}

/** Whether the host has no recent heartbeat, and is neither lost nor removed. */
export async function isDisconnected(tx: Tx, id: HostId): Promise<boolean> {
  const row = await tx
    .selectFrom('hosts')
    .select('id')
    .where('id', '=', id)
    .where('last_seen_at', '<=', seenBefore())
    .where('lost_at', 'is', null)
    .where('removed_at', 'is', null)
    .executeTakeFirst();
  return row !== undefined;
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

/** Connected hosts, the one with most free memory first. */
export async function listLiveHosts(tx: Tx): Promise<LiveHost[]> {
  const rows = await tx
    .selectFrom('hosts as h')
    .select([
      'h.id',
      'h.facts',
      'h.draining',
      'h.remote',
      'h.cpus',
      'h.memory_mib',
      (eb) =>
        eb
          .selectFrom('vms as v')
          .innerJoin('instances as i', 'i.id', 'v.instance_id')
          .select((inner) =>
            inner.fn.coalesce(inner.fn.sum<number>('i.memory_mib'), sql<number>`0`).as('sum'),
          )
          .whereRef('v.host_id', '=', 'h.id')
          .where('v.state', 'in', ['starting', 'running', 'restarting', 'suspending', 'stopping'])
          .as('used_memory_mib'),
    ])
    .where('h.last_seen_at', '>', sql<Date>`now() - make_interval(secs => ${HOST_FRESH_SECONDS})`)
    .where('h.facts', 'is not', null)
    .where('h.lost_at', 'is', null)
    .where('h.removed_at', 'is', null)
    .execute();
  return rows
    .flatMap(({ id, remote, draining, facts, cpus, memory_mib, used_memory_mib }) => {
      // An earlier version stored facts without validating them.
      if (facts === null || !fits(HostFacts, facts)) return [];
      const capacity = capacityOf({ remote, facts, cpus, memory_mib });
      return [{ id, remote, draining, facts, capacity, used_memory_mib: used_memory_mib ?? 0 }];
    })
    .sort((a, b) => freeMib(b) - freeMib(a));
}

function freeMib({ capacity, used_memory_mib }: LiveHost): number {
  return (capacity?.memory_mib ?? 0) - used_memory_mib;
}
