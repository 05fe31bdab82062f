/**
 * Computes the scale of a chart over time: ticks with their labels, the gaps in the line, and the point that is nearest
 * to a time. Pure.
 */
import { gibHoursText, hoursText } from '../../../client/src/usage.ts';
import { bytes } from '../format.ts';

export interface Point {
  /** The middle of what was measured. */
  readonly at_ms: number;
  /** Null: measured, but not this quantity; the line goes on. */
  readonly spread: { readonly mean: number; readonly min: number; readonly max: number } | null;
}
export type KnownPoint = Point & { readonly spread: NonNullable<Point['spread']> };

export type Unit = 'share' | 'bytes' | 'rate' | 'hours' | 'gib_hours';

export interface Tick {
  readonly at: number;
  readonly label: string;
}

function isAmount(unit: Unit): boolean {
  return unit === 'hours' || unit === 'gib_hours';
}

export function say(value: number, unit: Unit): string {
  if (unit === 'share') return `${(value * 100).toFixed(value < 0.1 && value > 0 ? 1 : 0)} %`;
  if (unit === 'hours') return hoursText(value * 3600);
  if (unit === 'gib_hours') return gibHoursText(value);
  return unit === 'rate' ? `${bytes(value)}/s` : bytes(value);
}

/** Without the digit that ticks, which are whole, do not need. */
function sayTick(value: number, unit: Unit): string {
  return say(value, unit).replace(/\.0+ /, ' ');
}

const SHARE_STEP = 0.25;
const INTERVALS = 4;
/** Nearly nothing must not look like much. */
const LEAST_TOP_BYTES = 1024;
const LEAST_TOP_AMOUNT = 0.1;

/** 1, 2 or 5 times a power of ten, at least `least`. */
function roundStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return ([1, 2, 5].find((factor) => factor * power >= least * (1 - 1e-9)) ?? 10) * power;
}

function stepOf(reached: number, unit: Unit): number {
  if (unit === 'share') return SHARE_STEP;
  return isAmount(unit) ? roundStep(reached / INTERVALS) : 2 ** Math.ceil(Math.log2(reached / INTERVALS));
}

/**
 * From 0 to at least `most`, two to four intervals. Bytes step by powers of two, hours by round decimals. `fixed`: the scale
 * ends there.
 */
export function valueTicks(most: number, unit: Unit, fixed: boolean): { top: number; ticks: Tick[] } {
  const least = isAmount(unit) ? LEAST_TOP_AMOUNT : LEAST_TOP_BYTES;
  const reached = unit === 'share' || fixed ? most : Math.max(most, least);
  const step = stepOf(reached, unit);
  const top = fixed ? most : Math.ceil(reached / step) * step;
  const count = Math.floor(top / step + 1e-9);
  const ticks = Array.from({ length: count + 1 }, (_, nth) => nth * step);
  return { top, ticks: ticks.map((at) => ({ at, label: sayTick(at, unit) })) };
}

const MINUTES = [5, 10, 15, 30, 60, 120, 180, 240, 360, 720] as const;
const DAYS = [1, 2, 5, 10, 30, 60, 120] as const;
const MINUTE_MS = 60_000;
const DAY_MIN = 24 * 60;

const time_of_day = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit' });
const day = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short' });

/** At most `count` round local times; a day begins with its date. */
export function timeTicks(from_ms: number, to_ms: number, count: number): Tick[] {
  const span_min = (to_ms - from_ms) / MINUTE_MS;
  const steps_min = [...MINUTES, ...DAYS.map((days) => days * DAY_MIN)];
  const step_min = steps_min.find((step) => span_min / step <= count) ?? (steps_min.at(-1) as number);
  const midnight = new Date(from_ms);
  midnight.setHours(0, 0, 0, 0);
  const [year, month, date] = [midnight.getFullYear(), midnight.getMonth(), midnight.getDate()];
  const ticks: Tick[] = [];
  for (let nth = 0; ; nth++) {
    // By the calendar, so that they stay round where the clocks change.
    const at = new Date(year, month, date, 0, nth * step_min);
    if (at.getTime() > to_ms) return ticks;
    const is_day = at.getHours() === 0 && at.getMinutes() === 0;
    if (at.getTime() >= from_ms)
      ticks.push({ at: at.getTime(), label: (is_day ? day : time_of_day).format(at) });
  }
}

/** Runs without a longer pause than `gap_ms`, of the points with a value. */
export function segments(points: readonly Point[], gap_ms: number): KnownPoint[][] {
  const found: KnownPoint[][] = [];
  let run: KnownPoint[] = [];
  for (const [nth, point] of points.entries()) {
    const before = points[nth - 1];
    if (before && point.at_ms - before.at_ms > gap_ms) {
      found.push(run);
      run = [];
    }
    if (isKnown(point)) run.push(point);
  }
  found.push(run);
  return found.filter(({ length }) => length > 0);
}

export function isKnown(point: Point): point is KnownPoint {
  return point.spread !== null;
}

/** The index of the point that is nearest to a time; -1 without points. */
export function nearest(points: readonly Point[], at_ms: number): number {
  return points.reduce((best, { at_ms: other }, nth) => {
    const of_best = points[best]?.at_ms ?? Number.POSITIVE_INFINITY;
    return Math.abs(other - at_ms) < Math.abs(of_best - at_ms) ? nth : best;
  }, -1);
}
