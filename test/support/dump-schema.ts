/**
 * Dumps the schema of a database as SQL, from pg_catalog: tables with their columns, defaults, constraints and comments, then
 * indexes, ordered by name. `schema.sql` is the committed dump, for reading and for comparison.
 */
import { connect } from '../../src/control-plane/db/connect.ts';

const HEAD = '-- Made by `node test/support/write-schema.ts` from a migrated database. Do not edit.\n';

interface Column {
  readonly table_name: string;
  readonly name: string;
  readonly type: string;
  readonly not_null: boolean;
  /** `generated always as identity`. */
  readonly identity: boolean;
  readonly computed: boolean;
  /** The expression of a computed column. */
  readonly default_value: string | null;
  readonly comment: string | null;
}
interface Table {
  readonly name: string;
  readonly unlogged: boolean;
  readonly comment: string | null;
}
interface Constraint {
  readonly table_name: string;
  readonly name: string;
  readonly definition: string;
}
interface Index {
  readonly definition: string;
}

const TABLES = `
  select c.relname as name, c.relpersistence = 'u' as unlogged, obj_description(c.oid, 'pg_class') as comment
  from pg_class c
  where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p')
  order by c.relname collate "C"`;

// Columns in the table's order, which is also that of `select *`.
const COLUMNS = `
  select c.relname as table_name, a.attname as name, format_type(a.atttypid, a.atttypmod) as type,
         a.attnotnull as not_null, a.attidentity = 'a' as identity, a.attgenerated = 's' as computed,
         pg_get_expr(d.adbin, d.adrelid) as default_value, col_description(c.oid, a.attnum) as comment
  from pg_attribute a
  join pg_class c on c.oid = a.attrelid
  left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
  where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0 and not a.attisdropped
  order by c.relname collate "C", a.attnum`;

// 'n' is NOT NULL, which the columns show. Primary key first, then by kind and name.
const CONSTRAINTS = `
  select c.relname as table_name, k.conname as name, pg_get_constraintdef(k.oid) as definition
  from pg_constraint k
  join pg_class c on c.oid = k.conrelid
  where c.relnamespace = 'public'::regnamespace and k.contype <> 'n'
  order by c.relname collate "C", array_position(array['p', 'u', 'f', 'c'], k.contype::text), k.conname collate "C"`;

const INDEXES = `
  select pg_get_indexdef(i.indexrelid) as definition
  from pg_index i
  join pg_class t on t.oid = i.indrelid
  join pg_class x on x.oid = i.indexrelid
  where t.relnamespace = 'public'::regnamespace
    and not exists (select from pg_constraint k where k.conindid = i.indexrelid and k.contype in ('p', 'u', 'x'))
  order by t.relname collate "C", x.relname collate "C"`;

/** Finds objects of kinds that the dump omits. There must be none, or the dump would be incomplete. */
const OTHERS = `
  select format('%s (%s)', c.relname, c.relkind) as name from pg_class c
  where c.relnamespace = 'public'::regnamespace and c.relkind not in ('r', 'p', 'i')
    -- The sequence of an identity column is the column's own.
    and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'i')
  union all
  select format('%s (function)', p.proname) from pg_proc p where p.pronamespace = 'public'::regnamespace
  union all
  select format('%s (trigger)', t.tgname) from pg_trigger t where not t.tgisinternal
  union all
  select format('%s (type)', t.typname) from pg_type t
  where t.typnamespace = 'public'::regnamespace and t.typtype in ('e', 'd')`;

/** The schema `public` of the database at `url`. @throws Error when it has objects of a kind that is not dumped */
export async function dumpSchema(url: string): Promise<string> {
  const client = await connect(url);
  try {
    await client.query('begin isolation level repeatable read read only');
    const others = (await client.query<{ name: string }>(OTHERS)).rows;
    if (others.length > 0) {
      throw new Error(`dump-schema.ts cannot show ${others.map((other) => other.name).join(', ')} yet`);
    }
    const tables = (await client.query<Table>(TABLES)).rows;
    const columns = (await client.query<Column>(COLUMNS)).rows;
    const constraints = (await client.query<Constraint>(CONSTRAINTS)).rows;
    const indexes = (await client.query<Index>(INDEXES)).rows;
    const parts = tables.map((table) =>
      tableText(
        table,
        columns.filter((column) => column.table_name === table.name),
        constraints.filter((constraint) => constraint.table_name === table.name),
      ),
    );
    return `${HEAD}\n${parts.join('\n')}\n${indexes.map((index) => `${index.definition};\n`).join('')}`;
  } finally {
    await client.end();
  }
}

function tableText(
  { name, unlogged, comment }: Table,
  columns: readonly Column[],
  constraints: readonly Constraint[],
): string {
  const parts = [
    ...columns.map((column) => `${commentText(column.comment, '  ')}  ${columnText(column)}`),
    ...constraints.map((constraint) => `  constraint ${constraint.name} ${constraint.definition}`),
  ];
  const head = `create ${unlogged ? 'unlogged ' : ''}table ${name}`;
  return `${commentText(comment, '')}${head} (\n${parts.join(',\n')}\n);\n`;
}

function columnText(column: Column): string {
  return [
    column.name,
    column.type,
    ...(column.not_null ? ['not null'] : []),
    ...(column.identity ? ['generated always as identity'] : []),
    ...(column.default_value === null ? [] : [valueText(column)]),
  ].join(' ');
}

function commentText(comment: string | null, indent: string): string {
  return comment === null ? '' : `${indent}-- ${comment}\n`;
}

function valueText({ computed, default_value }: Column): string {
  const text = (default_value ?? '').trim();
  return computed ? `generated always as (${text.replace(/\s+/g, ' ')}) stored` : `default ${text}`;
}
