/** Counts for the operators' metrics. */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import { VM_STATES, type VmState } from './model.ts';

/** Instances by the state of their newest VM; every state has a count. */
export async function countVmStates(tx: Tx): Promise<ReadonlyMap<VmState, number>> {
  const rows = await tx
    .selectFrom('instances as i')
    .leftJoinLateral(
      (eb) =>
        eb
          .selectFrom('vms')
          .select('vms.state')
          .whereRef('vms.instance_id', '=', 'i.id')
          .orderBy('vms.boot', 'desc')
          .limit(1)
          .as('v'),
      (join) => join.onTrue(),
    )
    .select((eb) => ['v.state', eb.fn.countAll<number>().as('count')])
    .groupBy('v.state')
    .execute();
  const counts = new Map<VmState, number>(VM_STATES.map((state) => [state, 0]));
  for (const { state, count } of rows) {
    const key = state ?? 'stopped';
    counts.set(key, (counts.get(key) ?? 0) + Number(count));
  }
  return counts;
}

/** Requested flushes that have not ended. */
export async function countOpenFlushes(tx: Tx): Promise<number> {
  const row = await tx
    .selectFrom('flushes')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('state', 'in', ['queued', 'running'])
    .executeTakeFirstOrThrow();
  return Number(row.count);
}

/** A longer interval between automatic flushes tells nothing of a flush that fails. */
const LONGEST_INTERVAL_SECONDS = 300;

/**
 * How long the oldest unsaved data may have waited, in seconds: since the last durable generation or the boot, of running VMs with
 * unsaved data and an automatic flush at least every 5 minutes. 0: nothing waits.
 */
export async function maxUnsavedSeconds(tx: Tx): Promise<number> {
  const { rows } = await sql<{ seconds: number }>`
    select coalesce(max(extract(epoch from now() - greatest(d.durable_at, v.started_at))), 0)::float8 as seconds
    from vms v
    join disks d on d.instance_id = v.instance_id and d.epoch = v.epoch
    join instances i on i.id = v.instance_id
    where v.state = 'running' and d.dirty_bytes > 0 and i.auto_flush_seconds <= ${LONGEST_INTERVAL_SECONDS} and not i.deleting`.execute(
    tx,
  );
  return Math.max(0, rows[0]?.seconds ?? 0);
}
