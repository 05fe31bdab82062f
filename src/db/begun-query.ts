/**
 * BEGIN in one go with the first statement of its transaction, which saves its round trip. Both stand before the same
 * Sync: a BEGIN that fails makes PostgreSQL skip the statement too, so nothing is ever done outside of its transaction.
 * https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-PIPELINING
 */
import pg from 'pg';

export const BEGIN = 'begin';
/** The name that BEGIN is prepared under. */
export const BEGIN_NAME = 'berth_begin';

interface Wire {
  bind(message: { readonly statement: string }): void;
  execute(message: object): void;
}

/** What the driver keeps to itself of a query. */
interface QueryParts {
  submit(wire: Wire): Error | null;
  handleCommandComplete(message: unknown, wire: Wire): void;
}
type Given = string | { readonly text: string; readonly name?: string; readonly values?: unknown[] };
type Done = (error: Error | undefined, result: unknown) => void;
const Query = pg.Query as unknown as new (
  given: Given,
  values: unknown[] | undefined,
  done: Done,
) => QueryParts;

class BegunQuery extends Query {
  #begun = false;

  override submit(wire: Wire): Error | null {
    wire.bind({ statement: BEGIN_NAME });
    wire.execute({});
    return super.submit(wire);
  }

  /** Not the simple protocol, which is a Sync of its own. */
  requiresPreparation(): boolean {
    return true;
  }

  override handleCommandComplete(message: unknown, wire: Wire): void {
    if (this.#begun) super.handleCommandComplete(message, wire);
    this.#begun = true;
  }
}

/** `send` hands the query of these arguments to the driver, on a connection where BEGIN is prepared. */
export function begunQuery(
  [given, values]: readonly unknown[],
  send: (query: object) => unknown,
): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const done: Done = (error, result) => (error ? reject(error) : resolve(result));
    send(new BegunQuery(given as Given, values as unknown[] | undefined, done));
  });
}
