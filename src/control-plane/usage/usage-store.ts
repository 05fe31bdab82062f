/** What an organisation's instances used, by the hour or by the day. */
import { sql } from 'kysely';
import type { InstanceId, OrgId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { storedBetween } from './count-store.ts';

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
