/** Which failed VMs their instance's `restart` starts again, and the starts that it made. */
import { sql } from 'kysely';
import type { InstanceId, VmId } from '../../shared/ids.ts';
import { RESTARTS_WINDOW_MS } from '../../shared/restart-policy.ts';
import type { Tx } from '../db/pool.ts';

export interface FailedVm {
  readonly vm_id: VmId;
  readonly instance_id: InstanceId;
  readonly failed_at: Date;
  /** Those of the ten minutes before it failed. */
  readonly restarted_at: readonly Date[];
}

/**
 * The newest boots that failed while they were wanted, of instances with `restart: on_failure`, and that were not postponed beyond
 * `now`. Whoever waits longest comes first, so that nobody's failures hide another's.
 */
export async function listFailed(tx: Tx, now: Date): Promise<FailedVm[]> {
  return failed(
    tx,
    sql`and (v.restart_after is null or v.restart_after <= ${now})
      order by v.restart_after nulls first, v.stopped_at limit 100`,
  );
}

/** Until the next look at the failed VM; null: it is not started again by itself. */
export async function postponeRestart(tx: Tx, { vm_id }: FailedVm, until: Date | null): Promise<void> {
  const restart_after = until?.toISOString() ?? 'infinity';
  await tx.updateTable('vms').set({ restart_after }).where('id', '=', vm_id).execute();
}

/** The same of one instance, which the caller has locked. */
export async function findFailed(tx: Tx, id: InstanceId): Promise<FailedVm | undefined> {
  return (await failed(tx, sql`and i.id = ${id}`))[0];
}

async function failed(tx: Tx, rest: ReturnType<typeof sql>): Promise<FailedVm[]> {
  const { rows } = await sql<FailedVm>`
    select v.id as vm_id, i.id as instance_id, v.stopped_at as failed_at, coalesce(r.restarted_at, '{}') as restarted_at
    from vms v
    join instances i on i.id = v.instance_id
    cross join lateral (
      select array_agg(earlier.restarted_at) as restarted_at from vms earlier
      where earlier.instance_id = i.id
        and earlier.restarted_at > v.stopped_at - make_interval(secs => ${RESTARTS_WINDOW_MS / 1000})
    ) r
    where i.restart <> 'never' and not i.deleting
      and not exists (select from vms newer where newer.instance_id = v.instance_id and newer.boot > v.boot)
      and v.state = 'failed' and (v.desired = 'running' or v.move is not null) and v.stopped_at is not null ${rest}`.execute(
    tx,
  );
  return rows;
}

export async function markRestarted(tx: Tx, id: VmId): Promise<void> {
  await tx.updateTable('vms').set({ restarted_at: sql`now()` }).where('id', '=', id).execute();
}
