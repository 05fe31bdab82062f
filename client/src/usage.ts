/** Sums what instances used, and formats the amounts for people. The command line and the console share it. */
import type { Usage } from './generated.ts';

/** One entry for each instance, from its first period on; the longest running first. */
export function usageByInstance(entries: readonly Usage[]): Usage[] {
  const sums = new Map<string, Usage>();
  for (const each of entries) {
    const sum = sums.get(each.instance_id);
    sums.set(each.instance_id, sum === undefined ? each : addUsage(sum, each));
  }
  return [...sums.values()].sort((a, b) => b.running_seconds - a.running_seconds);
}

/** With the instance of the first, and the earlier start. */
export function addUsage(sum: Usage, each: Usage): Usage {
  return {
    instance_id: sum.instance_id,
    start: sum.start < each.start ? sum.start : each.start,
    running_seconds: sum.running_seconds + each.running_seconds,
    cpu_seconds: sum.cpu_seconds + each.cpu_seconds,
    memory_gib_hours: sum.memory_gib_hours + each.memory_gib_hours,
    stored_gib_hours: sum.stored_gib_hours + each.stored_gib_hours,
    flushed_bytes: sum.flushed_bytes + each.flushed_bytes,
    http_bytes: sum.http_bytes + each.http_bytes,
  };
}

const MINUTE_S = 60;
const HOUR_S = 3_600;
/** From here on minutes tell nothing. */
const LONG_H = 100;
/** Units, and how many of them are a GiB. */
const LEAST_SIZE = ['KiB', 1024 ** 2] as const;
const SIZES = [['GiB', 1], ['MiB', 1024], LEAST_SIZE] as const;

/** `45 s`, `7 min 18 s`, `29 h 30 min`, `720 h`. Hours add up to no days, because use is counted in hours. */
export function hoursText(seconds: number): string {
  const whole = Math.round(seconds);
  if (whole < MINUTE_S) return `${whole} s`;
  if (whole < HOUR_S) return joined(Math.floor(whole / MINUTE_S), 'min', whole % MINUTE_S, 's');
  const minutes = Math.round(seconds / MINUTE_S);
  const hours = Math.floor(minutes / 60);
  return hours < LONG_H ? joined(hours, 'h', minutes % 60, 'min') : `${Math.round(minutes / 60)} h`;
}

/** Two digits are enough. Less than 0.01 GiB h is in MiB or KiB. */
export function gibHoursText(gib_hours: number): string {
  if (gib_hours === 0) return '0 GiB h';
  const [unit, per_gib] = SIZES.find(([, per]) => gib_hours * per >= 0.01) ?? LEAST_SIZE;
  const amount = gib_hours * per_gib;
  const shown = amount < 0.1 ? Number(amount.toPrecision(2)) : amount.toFixed(amount < 10 ? 2 : 0);
  return `${shown} ${unit} h`;
}

function joined(large: number, large_unit: string, small: number, small_unit: string): string {
  return small === 0 ? `${large} ${large_unit}` : `${large} ${large_unit} ${small} ${small_unit}`;
}
