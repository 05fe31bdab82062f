/** SQL of VMs that move away from draining hosts: which VMs are to move, which have left, and which are still there. */
import { sql } from 'kysely';
import type { HostId, InstanceId, VmId } from '../../shared/ids.ts';
import type { TraceContext } from '../../shared/tracing.ts';
import type { Tx } from '../db/pool.ts';
import { HOST_FRESH_SECONDS } from '../fleet/host-store.ts';
import type { VmState } from './model.ts';

const STAYING_MAX = 1_000;

/** Drained hosts that can do something: a VM of a silent one would only leave the state that its user knows. */
export async function listDraining(tx: Tx): Promise<HostId[]> {
  const rows = await tx
    .selectFrom('hosts')
    .select('id')
    .where('draining', '=', true)
    .where('last_seen_at', '>', sql<Date>`now() - make_interval(secs => ${HOST_FRESH_SECONDS})`)
    .where('lost_at', 'is', null)
    .where('removed_at', 'is', null)
    .execute();
  return rows.map(({ id }) => id);
}

/** Whether the host is drained, and the problem of its object store, if any. */
export async function findDraining(
  tx: Tx,
  id: HostId,
): Promise<{ readonly store_problem: string | null } | undefined> {
  const row = await tx
    .selectFrom('hosts')
    .select('facts')
    .where('id', '=', id)
    .where('draining', '=', true)
    .executeTakeFirst();
  return row && { store_problem: row.facts?.object_store_problem ?? null };
}

/** How many VMs are leaving the host now. */
export async function countLeaving(tx: Tx, id: HostId): Promise<number> {
  const { count } = await tx
    .selectFrom('vms as v')
    .innerJoin('instances as i', 'i.id', 'v.instance_id')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('v.move', 'is not', null)
    .where('v.host_id', '=', id)
    .where('v.state', '!=', 'failed')
    .where('i.deleting', '=', false)
    .executeTakeFirstOrThrow();
  return count;
}

/** Running VMs of the host whose move may begin now; those that were never tried first. */
export async function listMovable(tx: Tx, host_id: HostId, limit: number): Promise<InstanceId[]> {
  const rows = await tx
    .selectFrom('vms as v')
    .innerJoin('instances as i', 'i.id', 'v.instance_id')
    .select('v.instance_id')
    .where('v.host_id', '=', host_id)
    .where('v.state', '=', 'running')
    .where('i.deleting', '=', false)
    .where((eb) => eb.or([eb('v.move_after', 'is', null), eb('v.move_after', '<', sql<Date>`now()`)]))
    .orderBy(sql`v.move_after nulls first`)
    .orderBy('v.instance_id')
    .limit(limit)
    .execute();
  return rows.map(({ instance_id }) => instance_id);
}

/** Instances whose VM has left its host and is to continue elsewhere, now; and what began their move. */
export async function listLeft(
  tx: Tx,
): Promise<{ readonly instance_id: InstanceId; readonly trace_context: TraceContext | null }[]> {
  return tx
    .selectFrom('vms')
    .select(['instance_id', 'trace_context'])
    .where('move', 'is not', null)
    .where('state', 'in', ['suspended', 'stopped'])
    .where((eb) => eb.or([eb('move_after', 'is', null), eb('move_after', '<', sql<Date>`now()`)]))
    .orderBy('instance_id')
    .limit(100)
    .execute();
}

/** Why it could not move, and the seconds until the next try. */
export async function noteProblem(tx: Tx, id: VmId, problem: string, again_s: number): Promise<void> {
  await tx
    .updateTable('vms')
    .set({ move_problem: problem, move_after: sql`now() + make_interval(secs => ${again_s})` })
    .where('id', '=', id)
    .execute();
}

/** A newer boot exists. */
export async function endMove(tx: Tx, id: VmId): Promise<void> {
  await tx.updateTable('vms').set({ move: null }).where('id', '=', id).execute();
}

export interface Staying {
  readonly instance_id: InstanceId;
  readonly name: string;
  readonly state: VmState;
  readonly problem: string | null;
}

/** VMs of the host that are not elsewhere yet: they run there, are under way, or have failed. */
export async function listStaying(tx: Tx, host_id: HostId): Promise<Staying[]> {
  const { rows } = await sql<Staying>`
    select i.id as instance_id, i.name, v.state, v.move_problem as problem
    from vms v join instances i on i.id = v.instance_id and not i.deleting
    where v.host_id = ${host_id} and v.state not in ('stopped', 'suspended')
      and not exists (select from vms newer where newer.instance_id = v.instance_id and newer.boot > v.boot)
    union
    select i.id, i.name, v.state, v.move_problem
    from vms v join instances i on i.id = v.instance_id and not i.deleting
    where v.host_id = ${host_id} and v.move is not null
    order by name limit ${STAYING_MAX}`.execute(tx);
  return rows;
}
