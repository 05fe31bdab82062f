/**
 * Saves the rows of all tables as lines of text, from one snapshot of the database, and loads them into the tables of a
 * fresh database, in one transaction. Also writes and reads files of lines, compressed with zstd, with their SHA-256.
 */
import { createHash } from 'node:crypto';
import { createReadStream, createWriteStream } from 'node:fs';
import { createInterface } from 'node:readline';
import { Readable, Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createZstdCompress, createZstdDecompress } from 'node:zlib';
import pg from 'pg';
import { assert } from '../../shared/assert.ts';
import { connect } from '../db/connect.ts';
import { type AppliedMigration, appliedMigrations } from '../db/migrate.ts';

export interface DataTable {
  readonly name: string;
  /** All columns, in order. */
  readonly columns: readonly string[];
  /** Without generated columns. */
  readonly written: readonly string[];
  /** Columns of the primary key, for a stable order in which rows follow those of their table that they reference. */
  readonly key: readonly string[];
  /** Identity columns, whose sequences are saved, too. */
  readonly identities: readonly string[];
}

/** The applied migrations are saved separately; readers of objects, such as the backup itself, not at all. */
const APART = ['schema_migrations', 'object_readers'];

const TABLES = `
  select c.relname as name,
    array(select a.attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0
      and not a.attisdropped order by a.attnum) as columns,
    array(select a.attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0
      and not a.attisdropped and a.attgenerated = '' order by a.attnum) as written,
    array(select a.attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0
      and not a.attisdropped and (a.attidentity <> '' or pg_get_serial_sequence(c.oid::regclass::text, a.attname) is not null)
      order by a.attnum) as identities,
    array(select a.attname::text from pg_constraint k, unnest(k.conkey) with ordinality as p (attnum, place)
      join pg_attribute a on a.attnum = p.attnum
      where k.conrelid = c.oid and k.contype = 'p' and a.attrelid = c.oid order by p.place) as key
  from pg_class c
  where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' and c.relname <> all($1)
  order by c.relname collate "C"`;

const REFERENCES = `
  select distinct k.conrelid::regclass::text as from_table, k.confrelid::regclass::text as to_table
  from pg_constraint k
  where k.connamespace = 'public'::regnamespace and k.contype = 'f' and k.conrelid <> k.confrelid`;

/** The tables whose rows are saved and loaded, ordered so that referenced tables come first. */
async function dataTables(client: pg.Client): Promise<DataTable[]> {
  const tables = (await client.query<DataTable>(TABLES, [APART])).rows;
  const references = (await client.query<{ from_table: string; to_table: string }>(REFERENCES)).rows;
  const left = new Map(tables.map((table) => [table.name, table]));
  const ordered: DataTable[] = [];
  while (left.size > 0) {
    const waiting = new Set(
      references.filter(({ to_table }) => left.has(to_table)).map(({ from_table }) => from_table),
    );
    const next = [...left.values()].filter(({ name }) => !waiting.has(name));
    assert(next.length > 0, 'no tables refer to each other in a circle');
    for (const table of next) left.delete(table.name);
    ordered.push(...next);
  }
  return ordered;
}

/** Makes the text of a value the same on every server. */
const PLAIN_TEXT_SETTINGS = `
  set local datestyle = 'ISO, YMD'; set local timezone = 'UTC'; set local intervalstyle = 'postgres';
  set local extra_float_digits = 1; set local bytea_output = 'hex'; set local statement_timeout = 0;
  set local idle_in_transaction_session_timeout = 0`;

/** The number of tables in our schema. */
export async function queryTableCount(url: string): Promise<number> {
  const client = await connect(url);
  try {
    const { rows } = await client.query<{ count: number }>(
      `select count(*)::int as count from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p')`,
    );
    return rows[0]?.count ?? 0;
  } finally {
    await client.end();
  }
}

/** Rows held in memory at once. */
const FETCH_ROWS = 200;

export interface Snapshot {
  readonly migrations: readonly AppliedMigration[];
  /** Lines without line breaks. Read all of them. */
  lines(): AsyncGenerator<string>;
  /** Rows of the same snapshot. */
  query<Row extends pg.QueryResultRow>(text: string): Promise<Row[]>;
}

/** `work` reads one consistent snapshot. Writers are not blocked. */
export async function withSnapshot<T>(url: string, work: (snapshot: Snapshot) => Promise<T>): Promise<T> {
  const client = await connect(url, { statement_timeout_ms: 0 });
  try {
    await client.query('begin isolation level repeatable read read only');
    const result = await work(await snapshotOf(client));
    await client.query('commit');
    return result;
  } finally {
    await client.end();
  }
}

async function snapshotOf(client: pg.Client): Promise<Snapshot> {
  await client.query(PLAIN_TEXT_SETTINGS);
  const migrations = await appliedMigrations(client);
  return {
    migrations: migrations.map(({ name, sha256 }) => ({ name, sha256 })),
    lines: () => lines(client),
    query: async <Row extends pg.QueryResultRow>(text: string) => (await client.query<Row>(text)).rows,
  };
}

async function* lines(client: pg.Client): AsyncGenerator<string> {
  const tables = await dataTables(client);
  let rows = 0;
  for (const table of tables) {
    yield JSON.stringify({ table: table.name, columns: table.columns });
    for await (const row of rowsOf(client, table)) {
      rows += 1;
      yield JSON.stringify(row);
    }
  }
  // A sequence is not part of the snapshot; it is at or past the snapshot's rows.
  yield JSON.stringify({ sequences: await sequences(client, tables) });
  yield JSON.stringify({ complete: true, rows });
}

async function* rowsOf(client: pg.Client, { name, key, columns }: DataTable): AsyncGenerator<string> {
  const id = pg.escapeIdentifier(name);
  const order = (key.length > 0 ? key : columns)
    .map((column) => `t.${pg.escapeIdentifier(column)}`)
    .join(', ');
  await client.query(
    `declare data no scroll cursor for select t::text as row from public.${id} t order by ${order}`,
  );
  for (;;) {
    const { rows } = await client.query<{ row: string }>(`fetch ${FETCH_ROWS} from data`);
    for (const { row } of rows) yield row;
    if (rows.length < FETCH_ROWS) break;
  }
  await client.query('close data');
}

export interface SavedSequence {
  readonly table: string;
  readonly column: string;
  /** As text; null: never used. */
  readonly last: string | null;
}

async function sequences(client: pg.Client, tables: readonly DataTable[]): Promise<SavedSequence[]> {
  const saved: SavedSequence[] = [];
  for (const { name: table, identities } of tables) {
    for (const column of identities) {
      const { rows } = await client.query<{ last: string | null }>(
        `select pg_sequence_last_value(pg_get_serial_sequence($1, $2)::regclass)::text as last`,
        [`public.${pg.escapeIdentifier(table)}`, column],
      );
      saved.push({ table, column, last: rows[0]?.last ?? null });
    }
  }
  return saved;
}

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

/** Returns the SHA-256 of the file. Does not sync it. */
export async function writeLines(
  path: string,
  lines: AsyncIterable<string> | Iterable<string>,
  signal?: AbortSignal,
): Promise<string> {
  const hash = createHash('sha256');
  const hashing = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      hash.update(chunk);
      done(null, chunk);
    },
  });
  async function* ended(): AsyncGenerator<string> {
    for await (const line of lines) yield `${line}\n`;
  }
  await pipeline(
    Readable.from(ended()),
    createZstdCompress(),
    hashing,
    createWriteStream(path, { flags: 'wx', mode: 0o600 }),
    ...(signal ? [{ signal }] : []),
  );
  return hash.digest('hex');
}

export async function fileSha256(path: string, signal?: AbortSignal): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path, {
    highWaterMark: 1024 * 1024,
    ...(signal ? { signal } : {}),
  }))
    hash.update(chunk as Buffer);
  return hash.digest('hex');
}

export async function* readLines(path: string): AsyncGenerator<string> {
  const unpacked = createZstdDecompress();
  const reading = pipeline(createReadStream(path), unpacked);
  reading.catch(() => undefined); // told below, by the lines' own end
  for await (const line of createInterface({ input: unpacked, crlfDelay: Number.POSITIVE_INFINITY }))
    yield line;
  await reading;
}
