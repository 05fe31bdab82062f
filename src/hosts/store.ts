import { sql } from 'kysely';
import { fits } from '../agent-api/check.ts';
import { HostFacts } from '../agent-api/host-types.ts';
import type { Tx } from '../db/pool.ts';
import { type HostId, newId } from '../lib/ids.ts';

/** A host that said nothing for this long gets no new VM. */
export const HOST_FRESH_SECONDS = 20;

export async function findHostByToken(tx: Tx, token_hash: Buffer) {
  return tx
    .selectFrom('hosts')
    .select(['id', 'name', 'remote', 'protocol'])
    .where('token_hash', '=', token_hash)
    .where('removed_at', 'is', null)
    .executeTakeFirst();
}

/** Makes or renews the host of this name: its token is the one given. */
export async function upsertHost(tx: Tx, name: string, token_hash: Buffer): Promise<HostId> {
  const row = await tx
    .insertInto('hosts')
    .values({ id: newId('host'), name, token_hash, last_seen_at: null, facts: null })
    .onConflict((conflict) => conflict.column('name').doUpdateSet({ token_hash }))
    .returning('id')
    .executeTakeFirstOrThrow();
  return row.id;
}

export async function recordHeartbeat(tx: Tx, id: HostId, facts: HostFacts): Promise<void> {
  await tx
    .updateTable('hosts')
    .set({ last_seen_at: sql`now()`, facts: JSON.stringify(facts) })
    .where('id', '=', id)
    .execute();
}

/** The version of the agent protocol that it speaks; 0: it names none. */
export async function setProtocol(tx: Tx, id: HostId, protocol: number): Promise<void> {
  await tx.updateTable('hosts').set({ protocol }).where('id', '=', id).execute();
}

/** Until the transaction's end. What is read after it was committed by all who had it before. */
export async function lockPlacement(tx: Tx): Promise<void> {
  await sql`select pg_advisory_xact_lock(7400003)`.execute(tx);
}

/** What may be given out of a host; null: nothing, nobody has said yet. */
export interface Capacity {
  /** The most that one VM may have; null: as many as it likes, as on this machine. */
  readonly cpus: number | null;
  readonly memory_mib: number;
}

/**
 * This machine's own host is believed. Of a remote one counts what the operator has set, or what it reports if that is
 * less: it could say anything, to be given other people's VMs.
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

/** Whether it is a host that is not heard of, and neither given up for lost nor taken out of the fleet. */
export async function isAway(tx: Tx, id: HostId): Promise<boolean> {
  const away = await tx
    .selectFrom('hosts')
    .select('id')
    .where('id', '=', id)
    .where('last_seen_at', '<=', sql<Date>`now() - make_interval(secs => ${HOST_FRESH_SECONDS})`)
    .where('lost_at', 'is', null)
    .where('removed_at', 'is', null)
    .executeTakeFirst();
  return away !== undefined;
}

/** What hosts have last said of themselves. */
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

/** Hosts heard of lately, the one with most memory left first. */
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
      // What an earlier version has written down unseen is nobody's ruin.
      if (facts === null || !fits(HostFacts, facts)) return [];
      const capacity = capacityOf({ remote, facts, cpus, memory_mib });
      return [{ id, remote, draining, facts, capacity, used_memory_mib: used_memory_mib ?? 0 }];
    })
    .sort((a, b) => leftMib(b) - leftMib(a));
}

function leftMib({ capacity, used_memory_mib }: LiveHost): number {
  return (capacity?.memory_mib ?? 0) - used_memory_mib;
}
