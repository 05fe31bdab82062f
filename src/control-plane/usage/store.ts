/**
 * SQL of usage: counts by the hour what instances use, and lists it by the hour or by the day. Each statement writes
 * the rows of several instances in the order of their ids, so that no two statements deadlock.
 */
import { type RawBuilder, sql } from 'kysely';
import { present } from '../../shared/assert.ts';
import type { InstanceId, OrgId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

/** 13 months. */
const KEPT_DAYS = 396;

/**
 * How often stored bytes are counted. Nearly every instance has some, and each count writes a row of each: with 20,000 instances
 * 0.3 to 0.7 s of a processor and 10 MiB of PostgreSQL's log (docs/measurements/usage.md).
 */
const STORED_EVERY_S = 300;

type Moment = Date | RawBuilder<Date>;

/** The hours between two times, and the part of each that lies between them. */
function hoursBetween(since: Moment, until: Moment) {
  return sql`
    select hour, greatest(hour, ${since}) as since, least(hour + interval '1 hour', ${until}) as until
    from generate_series(date_trunc('hour', ${since}::timestamptz, 'UTC'), ${until}, interval '1 hour') as hour`;
}

/**
 * Adds running time, memory and stored bytes since the last count, to the second, also after a gap. A VM runs from its first
 * report of a running guest until its end; memory and stored bytes count with their present value. The caller has a transaction.
 */
export async function countUsage(tx: Tx): Promise<void> {
  const { rows } = await sql<{ since: Date; until: Date; stored_since: Date; stored_until: Date }>`
    with last as (select counted_until, stored_until from usage_clock for update)
    update usage_clock set counted_until = greatest(now(), last.counted_until),
      stored_until = case when now() >= last.stored_until + make_interval(secs => ${STORED_EVERY_S})
        then now() else last.stored_until end
    from last
    returning last.counted_until as since, usage_clock.counted_until as until,
      last.stored_until as stored_since, usage_clock.stored_until`.execute(tx);
  const clock = rows[0];
  if (!clock) return;
  if (clock.since < clock.until) await countRuns(tx, clock.since, clock.until);
  if (clock.stored_since < clock.stored_until)
    await countStored(tx, clock.stored_since, clock.stored_until, sql<boolean>`true`);
}

async function countRuns(tx: Tx, since: Date, until: Date): Promise<void> {
  await sql`
    with hours as (${hoursBetween(since, until)}), ran as (
      select v.instance_id, h.hour,
        sum(extract(epoch from least(v.stopped_at, h.until) - greatest(v.started_at, h.since))) as seconds
      from vms v join hours h on v.started_at < h.until and coalesce(v.stopped_at, 'infinity') > h.since
      where v.state not in ('stopped', 'suspended', 'failed') or v.stopped_at > ${since}
      group by v.instance_id, h.hour
    )
    insert into usage_hours as u (instance_id, org_id, hour, running_seconds, memory_mib_seconds)
    select i.id, i.org_id, ran.hour, ran.seconds, ran.seconds * i.memory_mib
    from ran join instances i on i.id = ran.instance_id
    where ran.seconds > 0
    order by i.id, ran.hour
    on conflict (instance_id, hour) do update set
      running_seconds = u.running_seconds + excluded.running_seconds,
      memory_mib_seconds = u.memory_mib_seconds + excluded.memory_mib_seconds`.execute(tx);
}

/** Of instances that match `which`, by the hour: `instance_id`, `org_id`, `hour`, `stored_byte_seconds`. */
function storedBetween(since: Moment, until: Moment, which: RawBuilder<boolean>) {
  return sql`
    select i.id as instance_id, i.org_id, h.hour,
      d.stored_bytes * extract(epoch from h.until - greatest(h.since, i.created_at)) as stored_byte_seconds
    from instances i
    join disks d on d.instance_id = i.id
    join (${hoursBetween(since, until)}) as h on h.until > greatest(h.since, i.created_at)
    where d.stored_bytes > 0 and ${which}`;
}

async function countStored(tx: Tx, since: Date, until: Date, which: RawBuilder<boolean>): Promise<void> {
  await sql`
    insert into usage_hours as u (instance_id, org_id, hour, stored_byte_seconds)
    ${storedBetween(since, until, which)} order by i.id, h.hour
    on conflict (instance_id, hour) do update set
      stored_byte_seconds = u.stored_byte_seconds + excluded.stored_byte_seconds`.execute(tx);
}

/** Counts the stored bytes of an instance whose rows are about to go. */
export async function countLastStored(tx: Tx, id: InstanceId): Promise<void> {
  const { now, stored_until } = await readClock(tx);
  if (stored_until < now) await countStored(tx, stored_until, now, sql<boolean>`i.id = ${id}`);
}

/** The clock's row is held until the transaction's end: nothing is counted meanwhile. */
async function readClock(tx: Tx): Promise<{ now: Date; stored_until: Date }> {
  const { rows } = await sql<{ now: Date; stored_until: Date }>`
    select clock_timestamp() as now, stored_until from usage_clock for share`.execute(tx);
  return present(rows[0], 'clock of the usage');
}

export interface CountedUse {
  readonly instance_id: InstanceId;
  readonly at: Date;
  readonly cpu_seconds?: number;
  readonly flushed_bytes?: number;
}

/** Adds to the hours of these uses. */
export async function addUse(tx: Tx, uses: readonly CountedUse[]): Promise<void> {
  if (uses.length === 0) return;
  await sql`
    insert into usage_hours as u (instance_id, org_id, hour, cpu_seconds, flushed_bytes)
    select i.id, i.org_id, date_trunc('hour', used.at, 'UTC'), sum(used.cpu_seconds), sum(used.flushed_bytes)
    from unnest(
      ${uses.map(({ instance_id }) => instance_id)}::text[], ${uses.map(({ at }) => at)}::timestamptz[],
      ${uses.map(({ cpu_seconds = 0 }) => cpu_seconds)}::float8[],
      ${uses.map(({ flushed_bytes = 0 }) => flushed_bytes)}::bigint[]
    ) as used (instance_id, at, cpu_seconds, flushed_bytes)
    join instances i on i.id = used.instance_id
    group by i.id, i.org_id, date_trunc('hour', used.at, 'UTC')
    order by i.id, date_trunc('hour', used.at, 'UTC')
    on conflict (instance_id, hour) do update set
      cpu_seconds = u.cpu_seconds + excluded.cpu_seconds,
      flushed_bytes = u.flushed_bytes + excluded.flushed_bytes`.execute(tx);
}

/** Adds the bytes that HTTP ports passed in both directions to the present hour. */
export async function addHttpBytes(
  tx: Tx,
  uses: readonly { readonly port_id: string; readonly bytes: number }[],
): Promise<void> {
  await sql`
    insert into usage_hours as u (instance_id, org_id, hour, http_bytes)
    select i.id, i.org_id, date_trunc('hour', now(), 'UTC'), sum(used.bytes)
    from unnest(
      ${uses.map(({ port_id }) => port_id)}::text[], ${uses.map(({ bytes }) => bytes)}::bigint[]
    ) as used (port_id, bytes)
    join http_ports p on p.id = used.port_id
    join instances i on i.id = p.instance_id
    where used.bytes > 0
    group by i.id, i.org_id
    order by i.id
    on conflict (instance_id, hour) do update set http_bytes = u.http_bytes + excluded.http_bytes`.execute(
    tx,
  );
}

export async function deleteOldUsage(tx: Tx): Promise<void> {
  await tx
    .deleteFrom('usage_hours')
    .where('hour', '<', sql<Date>`now() - make_interval(days => ${KEPT_DAYS})`)
    .execute();
}

export const INTERVALS = ['hour', 'day'] as const;
export type Interval = (typeof INTERVALS)[number];

export interface UsageFilter {
  /** Periods that begin at or after it, and before `until`. */
  readonly since: Date;
  readonly until: Date;
  readonly interval: Interval;
  readonly instance_id?: InstanceId;
}

export interface UsageRow {
  /** `<start>/<instance id>`: its place in the list. */
  readonly id: string;
  readonly instance_id: InstanceId;
  readonly start: Date;
  readonly running_seconds: number;
  readonly cpu_seconds: number;
  readonly memory_mib_seconds: number;
  readonly stored_byte_seconds: number;
  readonly flushed_bytes: number;
  readonly http_bytes: number;
}

const STORED_UNTIL = sql<Date>`(select stored_until from usage_clock)`;
const NOW = sql<Date>`now()`;

/** The newest periods first. Days are those of UTC. @param before the `id` after which the page begins */
export async function listUsage(
  tx: Tx,
  org_id: OrgId,
  { since, until, interval, instance_id }: UsageFilter,
  before: string | null,
  limit: number,
): Promise<UsageRow[]> {
  const [start = null, of = null] = before?.split('/') ?? [];
  const wanted = instance_id ?? null;
  // Stored bytes are counted every few minutes: the rest of them is added here.
  const uncounted = sql<boolean>`i.org_id = ${org_id} and (${wanted}::text is null or i.id = ${wanted})`;
  const { rows } = await sql<Omit<UsageRow, 'id'>>`
    select * from (
      select date_trunc(${interval}, hour, 'UTC') as start, instance_id,
        sum(running_seconds) as running_seconds, sum(cpu_seconds) as cpu_seconds,
        sum(memory_mib_seconds) as memory_mib_seconds, sum(stored_byte_seconds) as stored_byte_seconds,
        sum(flushed_bytes)::float8 as flushed_bytes, sum(http_bytes)::float8 as http_bytes
      from (
        select instance_id, org_id, hour, running_seconds, cpu_seconds, memory_mib_seconds, stored_byte_seconds,
          flushed_bytes, http_bytes from usage_hours
        union all
        select instance_id, org_id, hour, 0, 0, 0, stored_byte_seconds, 0, 0
        from (${storedBetween(STORED_UNTIL, NOW, uncounted)}) as stored
      ) as hours
      where org_id = ${org_id} and hour >= date_trunc(${interval}, ${since}::timestamptz, 'UTC') and hour < ${until}
        and (${wanted}::text is null or instance_id = ${wanted})
        and (${start}::timestamptz is null or hour < ${start}::timestamptz + ${`1 ${interval}`}::interval)
      group by 1, 2
    ) as used
    where ${start}::timestamptz is null or (start, instance_id) < (${start}::timestamptz, ${of}::text)
    order by start desc, instance_id desc limit ${limit}`.execute(tx);
  return rows.map((row) => ({ ...row, id: `${row.start.toISOString()}/${row.instance_id}` }));
}
