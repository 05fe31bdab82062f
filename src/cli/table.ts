/**
 * Formats lists as a table, CSV or JSON with the chosen columns, and one record as a line for each field. Also formats
 * sizes, durations and times. A cell has a text for people and a value for CSV and JSON.
 */
import { UsageError } from './command-error.ts';
import { didYouMean } from './values.ts';

/** A cell: the text for people, and the value that CSV and JSON carry, such as a number of bytes for `2 GiB`. */
export type Cell = string | { readonly text: string; readonly value: string | number | boolean | null };

/** A column that only people read: CSV and JSON leave it out unless --columns names it. */
interface ForPeople {
  readonly for_people: string;
}

interface Columns<T> {
  readonly headings: readonly (string | ForPeople)[];
  readonly row: (item: T) => readonly Cell[];
}

export interface Listing<T> extends Columns<T> {
  /** Columns of CSV and JSON, which a table shows only when --columns names them. */
  readonly more?: Columns<T>;
  /** What -q prints of an item. */
  readonly quiet: (item: T) => string;
  /** Printed instead of an empty table. */
  readonly empty: string;
}

export const LIST_FORMATS = ['table', 'csv', 'json'] as const;

/** --columns and --format. */
export interface Layout {
  /** Null: the usual ones. */
  readonly columns: readonly string[] | null;
  readonly format: (typeof LIST_FORMATS)[number];
}

export const USUAL_LAYOUT: Layout = { columns: null, format: 'table' };

const titleOf = (heading: string | ForPeople) => (typeof heading === 'string' ? heading : heading.for_people);

/** The name of a column: `SMALLEST DISK` is `smallest-disk`. */
const nameOf = (heading: string) => heading.toLowerCase().replaceAll(' ', '-');

const textOf = (cell: Cell) => (typeof cell === 'string' ? cell : cell.text);

/** A dash stands for no value. */
const dataOf = (cell: Cell) => (typeof cell !== 'string' ? cell.value : cell === '-' ? null : cell);

/** The names of all columns, for --columns. */
export const columnNames = <T>({ headings, more }: Listing<T>): readonly string[] =>
  [...headings, ...(more?.headings ?? [])].map((each) => nameOf(titleOf(each)));

/** @throws UsageError for an unknown column */
function positions(headings: readonly string[], columns: readonly string[]): readonly number[] {
  const names = headings.map(nameOf);
  // People type email for E-MAIL.
  const typed = (name: string) => nameOf(name).replaceAll(/[-_]/g, '');
  return columns.map((column) => {
    const at = names.findIndex((name) => typed(name) === typed(column));
    if (at !== -1) return at;
    const hint = didYouMean(column.toLowerCase(), names) || '.';
    throw new UsageError(`--columns: there is no column ${column}${hint} There are ${names.join(', ')}`);
  });
}

/** The positions of the columns that were not chosen. */
function usual<T>({ headings, more }: Listing<T>, is_table: boolean): readonly number[] {
  if (is_table) return [...headings.keys()];
  return [...headings, ...(more?.headings ?? [])].flatMap((each, at) =>
    typeof each === 'string' ? [at] : [],
  );
}

/** @throws UsageError for an unknown column */
export function formatList<T>(items: readonly T[], listing: Listing<T>, layout: Layout): string {
  const { more } = listing;
  const all = [...listing.headings, ...(more?.headings ?? [])];
  const chosen =
    layout.columns === null
      ? usual(listing, layout.format === 'table')
      : positions(all.map(titleOf), layout.columns);
  const headings = chosen.map((at) => titleOf(all[at] ?? ''));
  const rows = items.map((item) => {
    const cells = [...listing.row(item), ...(more?.row(item) ?? [])];
    return chosen.map((at) => cells[at] ?? '');
  });
  switch (layout.format) {
    case 'table':
      return items.length === 0 ? `${listing.empty}\n` : table(headings, rows);
    case 'csv':
      return csv(headings, rows);
    case 'json': {
      const records = rows.map((cells) =>
        Object.fromEntries(headings.map((heading, at) => [nameOf(heading), dataOf(cells[at] ?? '')])),
      );
      return `${JSON.stringify(records, null, 2)}\n`;
    }
  }
}

/** Spreadsheets calculate what begins so, or run it. */
const FORMULA = /^[=+\-@\t\r]/;

/** Numbers stay numbers. Text that would be a formula gets an apostrophe, by which spreadsheets know text. */
function csvText(cell: Cell): string {
  const value = dataOf(cell);
  return typeof value === 'string' && FORMULA.test(value) ? `'${value}` : String(value ?? '');
}

/** RFC 4180, with lines that end as usual here. */
function csv(headings: readonly string[], rows: readonly (readonly Cell[])[]): string {
  const quoted = (text: string) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const lines = [headings.map(nameOf), ...rows.map((row) => row.map(csvText))];
  return lines.map((line) => `${line.map(quoted).join(',')}\n`).join('');
}

/** Rows under headings, in aligned columns. */
export function table(headings: readonly string[], rows: readonly (readonly Cell[])[]): string {
  const all = [headings, ...rows].map((row) => row.map(textOf));
  const widths = headings.map((_, column) => Math.max(...all.map((row) => (row[column] ?? '').length)));
  const line = (row: readonly string[]) =>
    row
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join('  ')
      .trimEnd();
  return `${all.map(line).join('\n')}\n`;
}

/** One record, a line for each field. */
export function fields(rows: readonly (readonly [name: string, value: string])[]): string {
  const width = Math.max(...rows.map(([name]) => name.length));
  return rows
    .map(([name, value]) => `${name.padEnd(width)}  ${value}`.trimEnd())
    .join('\n')
    .concat('\n');
}

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

const BARS = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'] as const;

export interface TimedValue {
  readonly at_ms: number;
  readonly value: number;
}

/** `cells` characters for the time from `from_ms` to `to_ms`, scaled from 0 to the largest value. */
export function sparkLine(
  values: readonly TimedValue[],
  { from_ms, to_ms, cells }: { readonly from_ms: number; readonly to_ms: number; readonly cells: number },
): string {
  const cell_ms = (to_ms - from_ms) / cells;
  const of_cells = Array.from({ length: cells }, (): number[] => []);
  for (const { at_ms, value } of values) of_cells[Math.floor((at_ms - from_ms) / cell_ms)]?.push(value);
  const means = of_cells.map((some) =>
    some.length === 0 ? null : some.reduce((sum, value) => sum + value, 0) / some.length,
  );
  const top = Math.max(0, ...means.filter((mean) => mean !== null));
  return means
    .map((mean) => {
      if (mean === null) return ' ';
      return BARS[top === 0 ? 0 : Math.min(BARS.length - 1, Math.floor((mean / top) * BARS.length))];
    })
    .join('');
}

const QUOTA_UNITS: Readonly<Record<string, number>> = { memory_mib: 2 ** 20, disk_gib: 2 ** 30 };

export function quotaText(quota: string, value: number): string {
  const unit = QUOTA_UNITS[quota];
  return unit === undefined ? String(value) : bytes(value * unit);
}
