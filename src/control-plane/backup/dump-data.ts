/**
 * Writes the rows of a database as lines of JSON, for a backup; `load-data.ts` reads them. The embedded package lacks
 * pg_dump, and only rows are needed, because migrations make the schema.
 *
 *     {"table":"users","columns":["id",…]}      then one line per row: PostgreSQL's text of the row, as a string
 *     {"sequences":[{"table":…,"column":…,"last":…}]}      {"complete":true,"rows":…}
 */
import pg from 'pg';
import { connect } from '../db/connect.ts';
import { type AppliedMigration, appliedMigrations } from '../db/migrate.ts';
import { type DataTable, dataTables, PLAIN_TEXT_SETTINGS } from './data-tables.ts';

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
