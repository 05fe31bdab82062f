/**
 * SQL of idle VMs: records when ingresses last saw each VM in use, and lists the VMs that have been idle past their
 * timeout.
 */
import { sql } from 'kysely';
import type { ActivityReport } from '../../protocol/ingress-types.ts';
import type { IngressId, InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { INGRESS_DEAD_S, INGRESS_SILENT_S, recordWatch } from '../fleet/control-plane-store.ts';

/** `active` is written first: the time of the report must not be newer than what it contained. */
export async function recordActivity(
  tx: Tx,
  ingress_id: IngressId,
  { watched_ms, active }: ActivityReport,
): Promise<void> {
  if (active.length > 0) await markActive(tx, active);
  await recordWatch(tx, ingress_id, watched_ms);
}

async function markActive(tx: Tx, active: ActivityReport['active']): Promise<void> {
  const ids = active.map((each) => each.instance_id);
  const agos = active.map((each) => each.ago_ms / 1000);
  await sql`
    update vms set active_at = greatest(vms.active_at, now() - make_interval(secs => reported.ago))
    from unnest(${ids}::text[], ${agos}::float8[]) as reported (instance_id, ago)
    join instances on instances.id = reported.instance_id and instances.idle_timeout_seconds is not null
    where vms.instance_id = reported.instance_id and vms.state in ('running', 'restarting')`.execute(tx);
}

/**
 * Running VMs that no connection, no exec and no call has used for their timeout. An exec that waits for nobody's input is no use;
 * what it prints, and what it is sent, is. None while an ingress is silent, unless that
 * one is dead. The timeout starts no earlier than the last ingress began to watch: it cannot report earlier use.
 */
export async function listIdle(tx: Tx): Promise<InstanceId[]> {
  const { rows } = await sql<{ id: InstanceId }>`
    with watch as (
      select max(watching_since) as since, min(reported_at) as reported_at
      from ingresses where reported_at > now() - make_interval(secs => ${INGRESS_DEAD_S})
    )
    select i.id from vms v
    -- From the VMs to their instances: a plan that reads all instances can seem as cheap.
    cross join lateral (select * from instances where id = v.instance_id limit 1) i
    cross join watch w
    where v.state = 'running' and not i.deleting and i.idle_timeout_seconds is not null
      and w.reported_at > now() - make_interval(secs => ${INGRESS_SILENT_S})
      and not exists (
        select from execs e where e.instance_id = i.id and e.state = 'running' and not (e.stdin and e.waits))
      and greatest(v.started_at, v.active_at, w.since) < now() - make_interval(secs => i.idle_timeout_seconds)
    order by i.id limit 100`.execute(tx);
  return rows.map((row) => row.id);
}
