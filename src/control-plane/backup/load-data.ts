/** Loads the rows that `dump-data.ts` wrote into empty tables, in one transaction. */
import pg from 'pg';
import { connect } from '../db/connect.ts';
import { type DataTable, dataTables, PLAIN_TEXT_SETTINGS } from './data-tables.ts';
import type { SavedSequence } from './dump-data.ts';

const BATCH_ROWS = 1_000;
const BATCH_CHARACTERS = 1024 * 1024;

/** The saved data is incomplete, or of another schema. */
export class DataError extends Error {
  override name = 'DataError';
}

/**
 * The schema must have the same migrations as the saved one. Returns the number of rows.
 * @throws DataError
 */
export async function loadData(url: string, lines: AsyncIterable<string>): Promise<number> {
  const client = await connect(url, { statement_timeout_ms: 0 });
  try {
    await client.query('begin');
    await client.query(PLAIN_TEXT_SETTINGS);
    const loader = new Loader(client, await dataTables(client));
    for await (const line of lines) await loader.take(JSON.parse(line));
    const rows = loader.end();
    await client.query('commit');
    return rows;
  } finally {
    await client.end();
  }
}

type Line =
  | string
  | { readonly table: string; readonly columns: readonly string[] }
  | { readonly sequences: readonly SavedSequence[] }
  | { readonly complete: true; readonly rows: number };

class Loader {
  readonly #client: pg.Client;
  readonly #tables: ReadonlyMap<string, DataTable>;
  readonly #left: Set<string>;
  #table: DataTable | undefined;
  #batch: string[] = [];
  #characters = 0;
  #rows = 0;
  #complete = false;

  constructor(client: pg.Client, tables: readonly DataTable[]) {
    this.#client = client;
    this.#tables = new Map(tables.map((table) => [table.name, table]));
    this.#left = new Set(this.#tables.keys());
  }

  async take(line: Line): Promise<void> {
    if (this.#complete) throw new DataError('the data goes on past its end');
    if (typeof line === 'string') return this.#takeRow(line);
    await this.#write();
    if ('table' in line) await this.#begin(line.table, line.columns);
    else if ('sequences' in line) for (const each of line.sequences) await this.#count(each);
    else if (line.rows !== this.#rows)
      throw new DataError(`${this.#rows} rows where ${line.rows} were saved`);
    else this.#complete = true;
  }

  /** Returns how many rows there were. */
  end(): number {
    if (!this.#complete) throw new DataError('the data breaks off');
    if (this.#left.size > 0) throw new DataError(`nothing was saved of ${[...this.#left].join(', ')}`);
    return this.#rows;
  }

  async #begin(name: string, columns: readonly string[]): Promise<void> {
    const table = this.#tables.get(name);
    if (!table || table.columns.join() !== columns.join() || !this.#left.delete(name)) {
      throw new DataError(`the table ${name} is not here as it was saved`);
    }
    // Rows that migrations inserted are in the saved data, too.
    await this.#client.query(`delete from public.${pg.escapeIdentifier(name)}`);
    this.#table = table;
  }

  async #takeRow(row: string): Promise<void> {
    this.#batch.push(row);
    this.#characters += row.length;
    this.#rows += 1;
    if (this.#batch.length >= BATCH_ROWS || this.#characters >= BATCH_CHARACTERS) await this.#write();
  }

  async #write(): Promise<void> {
    if (this.#batch.length === 0) return;
    if (!this.#table) throw new DataError('a row of no table');
    const name = `public.${pg.escapeIdentifier(this.#table.name)}`;
    const written = this.#table.written.map((column) => pg.escapeIdentifier(column));
    // Without "offset 0" PostgreSQL would parse each row once per column.
    await this.#client.query(
      `insert into ${name} (${written.join(', ')}) overriding system value
       select ${written.map((column) => `(r).${column}`).join(', ')}
       from (select x::${name} as r from unnest($1::text[]) with ordinality as u (x, n) order by n offset 0) rows`,
      [this.#batch],
    );
    this.#batch = [];
    this.#characters = 0;
  }

  async #count({ table, column, last }: SavedSequence): Promise<void> {
    if (last === null) return;
    await this.#client.query('select setval(pg_get_serial_sequence($1, $2)::regclass, $3::bigint)', [
      `public.${pg.escapeIdentifier(table)}`,
      column,
      last,
    ]);
  }
}
