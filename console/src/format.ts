/** Formats numbers and times for people. */

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const;

/** As the command line shows them. */
export function bytes(value: number): string {
  let amount = value;
  let unit = 0;
  while (amount >= 1024 && unit < UNITS.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  const shown = amount >= 100 ? amount.toFixed(0) : amount.toFixed(1).replace(/\.0$/, '');
  return `${shown} ${UNITS[unit]}`;
}

export function mebibytes(value: number): string {
  return bytes(value * 1024 * 1024);
}

const STEPS = [
  [60, 'second'],
  [60, 'minute'],
  [24, 'hour'],
  [30, 'day'],
  [12, 'month'],
  [Number.POSITIVE_INFINITY, 'year'],
] as const;
const SHORT: Readonly<Record<string, string>> = { second: 's', minute: 'min', hour: 'h' };
const relative = new Intl.RelativeTimeFormat('en', { numeric: 'auto' });

/** "2 min ago", "in 3 h", "yesterday": with the units of the command line. */
export function ago(time: string | null, now_ms = Date.now()): string {
  if (time === null) return 'never';
  let amount = (Date.parse(time) - now_ms) / 1000;
  if (Math.abs(amount) < 5) return 'just now';
  for (const [step, unit] of STEPS) {
    if (Math.abs(amount) < step) {
      const short = SHORT[unit];
      if (short === undefined) return relative.format(Math.round(amount), unit);
      const count = `${Math.round(Math.abs(amount))} ${short}`;
      return amount < 0 ? `${count} ago` : `in ${count}`;
    }
    amount /= step;
  }
  return time;
}

/** Sweden writes times as ISO 8601 does: 2026-11-25 09:12:03. */
const moment = new Intl.DateTimeFormat('sv-SE', { dateStyle: 'short', timeStyle: 'medium' });
const clock = new Intl.DateTimeFormat('sv-SE', { timeStyle: 'short' });

/** In this browser's time zone: "2026-11-25 09:12:03". */
export function exactly(time: string): string {
  return moment.format(new Date(time));
}

/** "09:12" of today, or with its date. */
export function clockTime(at_ms: number, now_ms = Date.now()): string {
  const at = new Date(at_ms);
  return at.toDateString() === new Date(now_ms).toDateString()
    ? clock.format(at)
    : exactly(at.toISOString()).slice(0, -3);
}

/** 90 → "1 min 30 s". */
export function duration(seconds: number): string {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return joined(Math.floor(seconds / 60), 'min', seconds % 60, 's');
  if (seconds < 86_400)
    return joined(Math.floor(seconds / 3600), 'h', Math.floor((seconds % 3600) / 60), 'min');
  return joined(Math.floor(seconds / 86_400), 'd', Math.floor((seconds % 86_400) / 3600), 'h');
}

function joined(large: number, large_unit: string, small: number, small_unit: string): string {
  return small === 0 ? `${large} ${large_unit}` : `${large} ${large_unit} ${small} ${small_unit}`;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${count} ${count === 1 ? one : many}`;
}
