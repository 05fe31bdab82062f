/** The hours or days of a range, and what the organisation used in each. Pure. */
import type { Usage } from '../../../client/src/berth.ts';
import { addUsage } from '../../../client/src/usage.ts';
import type { Point, Unit } from '../ui/chart-scale.ts';

export const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

export const RANGES = {
  '24h': { name: '24 h', interval: 'hour', step_ms: HOUR_MS, count: 24 },
  '7d': { name: '7 days', interval: 'day', step_ms: DAY_MS, count: 7 },
  '30d': { name: '30 days', interval: 'day', step_ms: DAY_MS, count: 30 },
  '12m': { name: '12 months', interval: 'day', step_ms: DAY_MS, count: 365 },
} as const;
export type RangeName = keyof typeof RANGES;

type Amounts = Omit<Usage, 'instance_id' | 'start'>;

interface Amount {
  readonly title: string;
  readonly unit: Unit;
  readonly of: (used: Amounts) => number;
}

export const AMOUNTS: readonly Amount[] = [
  { title: 'Running time', unit: 'hours', of: (used) => used.running_seconds / 3600 },
  { title: 'CPU time', unit: 'hours', of: (used) => used.cpu_seconds / 3600 },
  { title: 'Memory', unit: 'gib_hours', of: (used) => used.memory_gib_hours },
  { title: 'Stored', unit: 'gib_hours', of: (used) => used.stored_gib_hours },
  { title: 'Flushed', unit: 'bytes', of: (used) => used.flushed_bytes },
  { title: 'HTTP', unit: 'bytes', of: (used) => used.http_bytes },
];

/** The present hour or day is the last of them. Days are those of UTC. */
export function rangeUntil(name: RangeName, now_ms: number) {
  const { step_ms, count } = RANGES[name];
  const to_ms = (Math.floor(now_ms / step_ms) + 1) * step_ms;
  return { from_ms: to_ms - count * step_ms, to_ms };
}

/** By its beginning, the sum of all instances in each period with any use. */
export function usageByPeriod(entries: readonly Usage[]): ReadonlyMap<number, Usage> {
  const sums = new Map<number, Usage>();
  for (const each of entries) {
    const start_ms = Date.parse(each.start);
    const sum = sums.get(start_ms);
    sums.set(start_ms, sum === undefined ? each : addUsage(sum, each));
  }
  return sums;
}

/** A point for each period; without an entry nothing was used. */
export function pointsOf(
  { of }: Amount,
  used: ReadonlyMap<number, Usage>,
  { from_ms, to_ms, step_ms }: { readonly from_ms: number; readonly to_ms: number; readonly step_ms: number },
): Point[] {
  return Array.from({ length: Math.round((to_ms - from_ms) / step_ms) }, (_, nth) => {
    const start_ms = from_ms + nth * step_ms;
    const entry = used.get(start_ms);
    const value = entry === undefined ? 0 : of(entry);
    return { at_ms: start_ms + step_ms / 2, spread: { mean: value, min: value, max: value } };
  });
}
