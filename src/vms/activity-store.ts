/** When the ingress last saw each VM in use, and which VMs have been idle past their timeout. */
import { sql } from 'kysely';
import type { ActivityReport } from '../agent-api/ingress-types.ts';
import type { Tx } from '../db/pool.ts';
import type { InstanceId } from '../lib/ids.ts';

/** An older report proves nothing: connections may have opened since. */
const REPORT_VALID_S = 20;

/** `active` is written first: `reported_at` must not be newer than what the report contained. */
export async function recordActivity(tx: Tx, { watched_ms, active }: ActivityReport): Promise<void> {
  if (active.length > 0) await markActive(tx, active);
  await sql`
    insert into ingress_watch (since, reported_at) values (now() - ${seconds(watched_ms)}, now())
    on conflict (one) do update set since = excluded.since, reported_at = excluded.reported_at`.execute(tx);
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

function seconds(ms: number) {
  return sql`make_interval(secs => ${ms / 1000}::float8)`;
}

/**
 * Running VMs that no connection, no exec and no call has used for their timeout. The timeout starts no earlier than the ingress
 * began to watch: it cannot report earlier use.
 */
export async function listIdle(tx: Tx): Promise<InstanceId[]> {
  const { rows } = await sql<{ id: InstanceId }>`
    select i.id from vms v
    join instances i on i.id = v.instance_id
    cross join ingress_watch w
    where v.state = 'running' and not i.deleting and i.idle_timeout_seconds is not null
      and w.reported_at > now() - make_interval(secs => ${REPORT_VALID_S})
      and not exists (select from execs e where e.instance_id = i.id and e.state = 'running')
      and greatest(v.started_at, v.active_at, w.since) < now() - make_interval(secs => i.idle_timeout_seconds)
    order by i.id limit 100`.execute(tx);
  return rows.map((row) => row.id);
}
