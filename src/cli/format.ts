/** Formats sizes, durations and times for people, and cells that keep the value for programs. */
import type { Cell } from './table.ts';

const CLOCK_SKEW_MS = 60_000;
const JUST_NOW_MS = 1_500;
const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const;

export function bytes(count: number): string {
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1).replace(/\.0$/, '')} ${UNITS[unit]}`;
}

/** `3 min ago`, `just now`, `in 2 h`; `never` for null. */
export function ago(time: string | null, now_ms = Date.now()): string {
  if (time === null) return 'never';
  const past_ms = now_ms - Date.parse(time);
  // Clocks differ a little: what has happened is not in the future.
  if (past_ms < -CLOCK_SKEW_MS) return `in ${duration(-past_ms)}`;
  if (past_ms < JUST_NOW_MS) return 'just now';
  return `${past_ms < 10_000 ? `${Math.round(past_ms / 1_000)} s` : duration(past_ms)} ago`;
}

/** The local time `2026-11-25 09:12:03`. */
export function localTime(time: string): string {
  return new Date(time).toLocaleString('sv-SE');
}

/** `2026-11-25 09:12 (3 min ago)`, in the time zone of this machine: the one format for times. `never` for null. */
export function when(time: string | null, now_ms = Date.now()): string {
  if (time === null) return 'never';
  return `${localTime(time).slice(0, -3)} (${ago(time, now_ms)})`;
}

/** A time in a list: RFC 3339 for programs. */
export const timeCell = (time: string | null, none = 'never'): Cell => ({
  text: time === null ? none : when(time),
  value: time,
});

export const numberCell = (value: number | null): Cell => ({
  text: value === null ? '-' : String(value),
  value,
});

/** `yes` or a dash; true or false for programs. */
export const flagCell = (value: boolean): Cell => ({ text: value ? 'yes' : '-', value });

/** A text for people, and what programs get instead. */
export const cell = (text: string, value: string | number | boolean | null): Cell => ({ text, value });

/** A number of bytes in a list. */
export const sizeCell = (count: number | null): Cell => ({
  text: count === null ? '-' : bytes(count),
  value: count,
});

export function duration(ms: number): string {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1_000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7_200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3_600)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

/** The local time 14:03:07, for live lines. */
export function clock(time: string): string {
  return new Date(time).toTimeString().slice(0, 8);
}

const BAR_CELLS = 20;

/** `[#######-------------]` @param done from 0 to 1 */
export function bar(done: number): string {
  const cells = Math.floor(Math.min(1, Math.max(0, done)) * BAR_CELLS);
  return `[${'#'.repeat(cells)}${'-'.repeat(BAR_CELLS - cells)}]`;
}

export const plural = (count: number, one: string, many = `${one}s`) =>
  `${count} ${count === 1 ? one : many}`;

/** Wraps at `width` characters; longer words stay whole. */
export function wrapped(text: string, width: number): readonly string[] {
  const lines: string[] = [];
  for (const word of text.split(' ')) {
    const last = lines.at(-1);
    if (last === undefined || last.length + 1 + word.length > width) lines.push(word);
    else lines[lines.length - 1] = `${last} ${word}`;
  }
  return lines;
}
