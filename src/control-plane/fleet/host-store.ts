import { sql } from 'kysely';
import { fits } from '../../protocol/check.ts';
import { HostFacts } from '../../protocol/host-types.ts';
import { type HostId, newId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Capacity } from './placement.ts';

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
  // An earlier version stored facts without validating them.
  return rows.flatMap(({ facts, ...row }) =>
    facts !== null && fits(HostFacts, facts) ? [{ ...row, facts }] : [],
  );
}
