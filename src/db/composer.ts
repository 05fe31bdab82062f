/**
 * Statements that are composed once, at the program's start, and run often: what a query builder does for every request
 * costs more than sending it.
 */
import {
  type DatabaseConnection,
  DummyDriver,
  Kysely,
  PostgresAdapter,
  PostgresIntrospector,
  PostgresQueryCompiler,
} from 'kysely';
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
