/**
 * Statements that go to PostgreSQL in one go with COMMIT: events and audit entries then cost no round trip of their own,
 * and what one locks is held for none. One of them that fails aborts the transaction: all or nothing, as ever.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import { type CompiledQuery, type DatabaseConnection, PostgresDialect, PostgresDriver } from 'kysely';
import { commitWith } from './statement-names.ts';

/** Those of the transaction that runs here. */
const statements = new AsyncLocalStorage<readonly CompiledQuery[]>();

/** Runs a transaction at whose end `last` is sent. */
export function withCommit<T>(last: readonly CompiledQuery[], run: () => Promise<T>): Promise<T> {
  return statements.run(last, run);
}

class CommittingDriver extends PostgresDriver {
  override async commitTransaction(connection: DatabaseConnection): Promise<void> {
    const last = statements.getStore() ?? [];
    if (last.length === 0) await super.commitTransaction(connection);
    // One of them that fails is an error of the statement's own, so this is not answered with a ROLLBACK.
    else await connection.executeQuery(commitWith(last));
  }
}

export class CommittingDialect extends PostgresDialect {
  readonly #config: ConstructorParameters<typeof PostgresDialect>[0];

  constructor(config: ConstructorParameters<typeof PostgresDialect>[0]) {
    super(config);
    this.#config = config;
  }

  override createDriver(): PostgresDriver {
    return new CommittingDriver(this.#config);
  }
}
