/** SQL of stored metrics: samples of what instances used, by the minute and by the hour. */
import { sql } from 'kysely';
import { METRICS, type Metric, type Spread, type Spreads } from '../../protocol/host-types.ts';
import type { HostId, InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Database } from '../db/tables.ts';
import type { MetricSample } from './metric-history.ts';

type Row = Database['metric_samples'];

/** Of these instances, those whose newest VM is or was on this host, with their number of CPUs. */
export async function listCpusOn(
  tx: Tx,
  host_id: HostId,
  ids: readonly InstanceId[],
): Promise<ReadonlyMap<InstanceId, number>> {
  const { rows } = await sql<{ id: InstanceId; cpus: number }>`
    select i.id, i.cpus from instances i
    where i.id = any(${ids}::text[])
      and ${host_id} = (select v.host_id from vms v where v.instance_id = i.id order by v.boot desc limit 1)`.execute(
    tx,
  );
  return new Map(rows.map(({ id, cpus }) => [id, cpus]));
}

/** Returns those that are new. A period that is stored already stays as it is: a report may come twice. */
export async function insertSamples(
  tx: Tx,
  seconds: 60 | 3600,
  samples: readonly (MetricSample & { readonly instance_id: InstanceId })[],
): Promise<Pick<Row, 'instance_id' | 'at'>[]> {
  if (samples.length === 0) return [];
  return tx
    .insertInto('metric_samples')
    .values(
      samples.map(({ instance_id, at_ms, minutes, spreads }) => ({
        instance_id,
        at: new Date(at_ms),
        seconds,
        minutes,
        means: column(spreads, 'mean'),
        mins: column(spreads, 'min'),
        maxs: column(spreads, 'max'),
      })),
    )
    .onConflict((conflict) => conflict.doNothing())
    .returning(['instance_id', 'at'])
    .execute();
}

/** Oldest first. */
export async function readSamples(tx: Tx, instance_id: InstanceId, since: Date): Promise<MetricSample[]> {
  const rows = await tx
    .selectFrom('metric_samples')
    .selectAll()
    .where('instance_id', '=', instance_id)
    .where('at', '>=', since)
    .orderBy('at')
    .execute();
  return rows.map(sampleOf);
}

/** Deletes the minutes before `before`, and returns them. */
export async function takeMinutes(tx: Tx, instance_id: InstanceId, before: Date): Promise<MetricSample[]> {
  const rows = await tx
    .deleteFrom('metric_samples')
    .where('instance_id', '=', instance_id)
    .where('at', '<', before)
    .where('seconds', '=', 60)
    .returningAll()
    .execute();
  return rows.map(sampleOf);
}

/** All of the instance, or those before `before`. */
export async function deleteSamples(tx: Tx, instance_id: InstanceId, before?: Date): Promise<void> {
  await tx
    .deleteFrom('metric_samples')
    .where('instance_id', '=', instance_id)
    .$if(before !== undefined, (query) => query.where('at', '<', before as Date))
    .execute();
}

/** The instances that have samples, by a search for each in the index. */
export async function listSampled(tx: Tx): Promise<InstanceId[]> {
  const { rows } = await sql<{ id: InstanceId }>`
    with recursive found as (
      select min(instance_id) as id from metric_samples
      union all
      select (select min(instance_id) from metric_samples where instance_id > found.id) from found
      where found.id is not null
    )
    select id from found where id is not null`.execute(tx);
  return rows.map(({ id }) => id);
}

function column(spreads: Spreads, part: keyof Spread): (number | null)[] {
  return METRICS.map((metric) => spreads[metric]?.[part] ?? null);
}

function sampleOf({ at, minutes, means, mins, maxs }: Row): MetricSample {
  const spread = (_metric: Metric, place: number): Spread | null => {
    const [mean, min, max] = [means[place], mins[place], maxs[place]];
    return typeof mean === 'number' && typeof min === 'number' && typeof max === 'number'
      ? { mean, min, max }
      : null;
  };
  const spreads = Object.fromEntries(METRICS.map((metric, place) => [metric, spread(metric, place)]));
  return { at_ms: at.getTime(), minutes, spreads: spreads as Spreads };
}
