import { sql } from 'kysely';
import type { HostFacts } from '../agent-api/types.ts';
import type { Tx } from '../db/pool.ts';
import { type HostId, newId } from '../lib/ids.ts';

/** A host that said nothing for this long gets no new VM. */
export const HOST_FRESH_SECONDS = 20;

export async function findHostByToken(tx: Tx, token_hash: Buffer) {
  return tx
    .selectFrom('hosts')
    .select(['id', 'name', 'remote'])
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

/** Until the transaction's end. What is read after it was committed by all who had it before. */
export async function lockPlacement(tx: Tx): Promise<void> {
  await sql`select pg_advisory_xact_lock(7400003)`.execute(tx);
}

export interface LiveHost {
  readonly id: HostId;
  readonly draining: boolean;
  readonly facts: HostFacts;
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
    .flatMap((row) =>
      row.facts === null
        ? []
        : [
            {
              id: row.id,
              draining: row.draining,
              facts: row.facts,
              used_memory_mib: row.used_memory_mib ?? 0,
            },
          ],
    )
    .sort((a, b) => b.facts.memory_mib - b.used_memory_mib - (a.facts.memory_mib - a.used_memory_mib));
}
