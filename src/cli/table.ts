/** Prints lists as a table, CSV or JSON in the chosen columns, and one record as a line for each field. */
import { nearest } from '../shared/nearest.ts';
import { UsageError } from './command-error.ts';

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
    const meant = nearest(column.toLowerCase(), names);
    const hint = meant === undefined ? '' : ` Did you mean ${meant}?`;
    throw new UsageError(`--columns: there is no column ${column}.${hint} There are ${names.join(', ')}`);
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
