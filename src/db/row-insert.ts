/**
 * Inserts of one row each that can go together: what PostgreSQL and the driver do for a statement costs more than a row
 * does, so rows of one table that are written at one time are one statement.
 */
import { CompiledQuery } from 'kysely';
import { assert, present } from '../lib/assert.ts';
import { arrayText } from './array-text.ts';
import type { Database } from './tables.ts';

type ColumnType = 'text' | 'text[]' | 'bytea' | 'timestamptz' | 'jsonb';

/** The type that an array of the column's values has: one of arrays would be taken for a matrix. */
const ELEMENTS: Record<ColumnType, 'text' | 'bytea' | 'timestamptz'> = {
  text: 'text',
  'text[]': 'text',
  bytea: 'bytea',
  timestamptz: 'timestamptz',
  jsonb: 'text',
};

/** An insert into these columns of a table, without conflicts, answers or rows that depend on one another. */
export class RowInsert {
  readonly #types: readonly ColumnType[];
  readonly #one: string;
  readonly #many: string;

  constructor(table: keyof Database, columns: Readonly<Record<string, ColumnType>>) {
    const names = Object.keys(columns).join(', ');
    this.#types = Object.values(columns);
    const into = `insert into ${table} (${names})`;
    this.#one = `${into} values (${this.#types.map((type, at) => `$${at + 1}::${type}`).join(', ')})`;
    const selected = Object.entries(columns).map(([name, type]) => `${name}::${type}`);
    const arrays = this.#types.map((type, at) => `$${at + 1}::${ELEMENTS[type]}[]`);
    this.#many = `${into} select ${selected.join(', ')} from unnest(${arrays.join(', ')}) as rows (${names})`;
  }

  /** Of one row: `values` in the columns' order, `jsonb` as text. */
  of(values: readonly unknown[]): CompiledQuery {
    assert(values.length === this.#types.length, 'a value for each column');
    const statement = CompiledQuery.raw(this.#one, [...values]);
    inserts.set(statement, this);
    return statement;
  }

  /** Of all their rows, in their order. */
  ofAll(statements: readonly CompiledQuery[]): CompiledQuery {
    const [first] = statements;
    if (statements.length === 1) return present(first, 'the one of a length of one');
    const columns = this.#types.map((type, at) => {
      const values = statements.map(({ parameters }) => parameters[at]);
      if (type === 'text[]') return arrayText(values.map((each) => arrayText(each as readonly string[])));
      return ELEMENTS[type] === 'text' ? arrayText(values as readonly (string | null)[]) : values;
    });
    return CompiledQuery.raw(this.#many, columns);
  }
}

/** What each was made by. */
const inserts = new WeakMap<CompiledQuery, RowInsert>();

/**
 * The statements of several transactions as few: those that each insert a row are one for a table, in the order in which
 * the tables come. As they are where one of them does anything else.
 */
export function inserted(statements: readonly CompiledQuery[]): readonly CompiledQuery[] {
  const by_table = Map.groupBy(statements, (statement) => inserts.get(statement));
  if (by_table.has(undefined)) return statements;
  return [...by_table].map(([insert, rows]) => present(insert, 'what inserts them').ofAll(rows));
}
