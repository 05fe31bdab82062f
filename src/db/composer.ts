/**
 * Statements that are composed once, at the program's start, and run often: what a query builder does for every request
 * costs more than sending it. The values given while composing stand for the parameters, in their order.
 */
import {
  CompiledQuery as Compiled,
  type CompiledQuery,
  type DatabaseConnection,
  DummyDriver,
  Kysely,
  PostgresAdapter,
  PostgresIntrospector,
  PostgresQueryCompiler,
} from 'kysely';
import { assert } from '../lib/assert.ts';
import type { Database } from './tables.ts';

class NoDriver extends DummyDriver {
  override acquireConnection(): Promise<DatabaseConnection> {
    throw new Error('connected to nothing: statements can be composed here, not executed');
  }
}

/** Composes for PostgreSQL and is connected to nothing. */
export const composer = new Kysely<Database>({
  dialect: {
    createDriver: () => new NoDriver(),
    createAdapter: () => new PostgresAdapter(),
    createIntrospector: (db) => new PostgresIntrospector(db),
    createQueryCompiler: () => new PostgresQueryCompiler(),
  },
});

/** A composed statement with these parameters. */
export function again<Row>(
  statement: CompiledQuery<Row>,
  parameters: readonly unknown[],
): CompiledQuery<Row> {
  assert(parameters.length === statement.parameters.length, 'as many parameters as were composed');
  return Compiled.raw(statement.sql, [...parameters]) as CompiledQuery<Row>;
}
