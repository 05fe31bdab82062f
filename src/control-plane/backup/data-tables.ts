/** The tables whose rows are saved and loaded, ordered so that referenced tables come first. */
import type pg from 'pg';
import { assert } from '../../shared/assert.ts';
import { connect } from '../db/connect.ts';

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

export async function dataTables(client: pg.Client): Promise<DataTable[]> {
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
export const PLAIN_TEXT_SETTINGS = `
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
