/**
 * Keeps the history of what instances used, also while no VM runs. Records the minutes that hosts report, replaces
 * minutes by hours after a day, deletes hours after 30 days, and reads a range of time for the API.
 */
import {
  METRICS,
  type Metric,
  type MinutesReport,
  type Spread,
  type Spreads,
} from '../../protocol/host-types.ts';
import type { HostId, InstanceId } from '../../shared/ids.ts';
import { type Db, transaction } from '../db/pool.ts';
import { eachInTurn } from '../tasks/run-tasks.ts';
import { addUse } from '../usage/store.ts';
import {
  deleteSamples,
  insertSamples,
  listCpusOn,
  listSampled,
  readSamples,
  takeMinutes,
} from './metric-store.ts';

export interface MetricSample {
  /** The beginning of the period. */
  readonly at_ms: number;
  /** The measured minutes of the period. */
  readonly minutes: number;
  readonly spreads: Spreads;
}

/**
 * One sample for each period of `step_ms` in which something was measured, oldest first. Each mean is weighted by the measured
 * minutes, and the extremes are kept.
 */
export function downsample(samples: readonly MetricSample[], step_ms: number): MetricSample[] {
  const periods = Map.groupBy(samples, ({ at_ms }) => at_ms - (at_ms % step_ms));
  return [...periods]
    .sort(([one], [other]) => one - other)
    .map(([at_ms, parts]) => ({
      at_ms,
      minutes: parts.reduce((sum, { minutes }) => sum + minutes, 0),
      spreads: Object.fromEntries(METRICS.map((metric) => [metric, joined(parts, metric)])) as Spreads,
    }));
}

function joined(parts: readonly MetricSample[], metric: Metric): Spread | null {
  const known = parts.flatMap(({ minutes, spreads }) => {
    const spread = spreads[metric];
    return spread === null ? [] : [{ minutes, ...spread }];
  });
  if (known.length === 0) return null;
  const weight = known.reduce((sum, { minutes }) => sum + minutes, 0);
  const min = Math.min(...known.map((each) => each.min));
  const max = Math.max(...known.map((each) => each.max));
  const mean = known.reduce((sum, each) => sum + each.mean * (each.minutes / weight), 0);
  // Rounding may move the mean of equal values past them.
  return { mean: Math.min(max, Math.max(min, mean)), min, max };
}

const MINUTE_S = 60;
const HOUR_S = 60 * MINUTE_S;
const DAY_S = 24 * HOUR_S;

export const RANGES = ['1h', '6h', '24h', '7d', '30d'] as const;
export type TimeRange = (typeof RANGES)[number];

/** Each range has at most 360 samples. A step is a multiple of the stored periods: minutes for a day, then hours. */
const SPANS: Readonly<Record<TimeRange, { readonly seconds: number; readonly step_seconds: number }>> = {
  '1h': { seconds: HOUR_S, step_seconds: MINUTE_S },
  '6h': { seconds: 6 * HOUR_S, step_seconds: MINUTE_S },
  '24h': { seconds: DAY_S, step_seconds: 5 * MINUTE_S },
  '7d': { seconds: 7 * DAY_S, step_seconds: HOUR_S },
  '30d': { seconds: 30 * DAY_S, step_seconds: 3 * HOUR_S },
};
export const MAX_SAMPLES = 361;

export interface MetricHistory {
  readonly from: Date;
  readonly to: Date;
  readonly step_seconds: number;
  readonly samples: readonly MetricSample[];
}

export async function readMetricHistory(db: Db, id: InstanceId, range: TimeRange): Promise<MetricHistory> {
  const { seconds, step_seconds } = SPANS[range];
  const to_ms = Date.now();
  const step_ms = step_seconds * 1000;
  const from_ms = Math.ceil((to_ms - seconds * 1000) / step_ms) * step_ms;
  const from = new Date(from_ms);
  const samples = downsample(await readSamples(db, id, from), step_ms);
  return { from, to: new Date(to_ms), step_seconds, samples };
}

const HOUR_MS = 3_600_000;
/** A day, and an hour so that a day can be read by the minute at any time. */
const MINUTES_FOR_MS = 25 * HOUR_MS;
const HOURS_FOR_MS = 30 * 24 * HOUR_MS;

/** Replaces the minutes of metric histories by hours after a day, and deletes the hours after 30 days. */
export async function downsampleMetrics(db: Db, now_ms = Date.now()): Promise<void> {
  // Whole hours, so that no hour is replaced twice.
  const minutes_until = new Date(Math.floor((now_ms - MINUTES_FOR_MS) / HOUR_MS) * HOUR_MS);
  const hours_until = new Date(now_ms - HOURS_FOR_MS);
  await eachInTurn(await listSampled(db), (instance_id) =>
    transaction(db, async (tx) => {
      const minutes = await takeMinutes(tx, instance_id, minutes_until);
      const hours = downsample(minutes, HOUR_MS).map((hour) => ({ instance_id, ...hour }));
      await insertSamples(tx, 3600, hours);
      await deleteSamples(tx, instance_id, hours_until);
    }),
  );
}

const MINUTE_MS = 60_000;
/** A host keeps minutes for about an hour while the control plane is away. */
const OLDEST_MS = 2 * 60 * MINUTE_MS;
/** Clocks differ. */
const AHEAD_MS = 5 * MINUTE_MS;

export async function recordMinutes(
  db: Db,
  host_id: HostId,
  { minutes }: MinutesReport,
): Promise<'accepted' | 'fenced'> {
  const now_ms = Date.now();
  const cpus = await listCpusOn(db, host_id, [...new Set(minutes.map(({ instance_id }) => instance_id))]);
  const samples = minutes.flatMap(({ instance_id, at, spreads }) => {
    const at_ms = Date.parse(at);
    const count = cpus.get(instance_id);
    if (count === undefined || at_ms < now_ms - OLDEST_MS || at_ms > now_ms + AHEAD_MS) return [];
    const whole_ms = at_ms - (at_ms % MINUTE_MS);
    return [
      { instance_id, at_ms: whole_ms, minutes: 1, spreads: ofAll(spreads, count), cpus: spreads.cpu?.mean },
    ];
  });
  await transaction(db, async (tx) => {
    const stored = await insertSamples(tx, 60, samples);
    const places = new Set(stored.map(({ instance_id, at }) => placeOf(instance_id, at.getTime())));
    const fresh = samples.filter(({ instance_id, at_ms }) => places.has(placeOf(instance_id, at_ms)));
    const uses = fresh.map(({ instance_id, at_ms, cpus: mean = 0 }) => {
      return { instance_id, at: new Date(at_ms), cpu_seconds: mean * 60 };
    });
    await addUse(tx, uses);
  });
  return minutes.length > 0 && cpus.size === 0 ? 'fenced' : 'accepted';
}

const placeOf = (instance_id: string, at_ms: number) => `${instance_id} ${at_ms}`;

/** QEMU also emulates devices, so the process may exceed its virtual CPUs: the share is capped at 1. */
function ofAll({ cpu, ...others }: Spreads, count: number): Spreads {
  const share = (cpus: number) => Math.min(1, cpus / count);
  const shares: Spread | null = cpu && { mean: share(cpu.mean), min: share(cpu.min), max: share(cpu.max) };
  return { ...others, cpu: shares };
}
