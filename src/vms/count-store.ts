/** Counts for the operators' metrics. */
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
