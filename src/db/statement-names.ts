/**
 * Names for statements that come again: PostgreSQL then parses them once a connection, and soon plans them once. A text
 * is named from its tenth use, so one with a list of changing length does not take a name from those that matter, and
 * there are at most {@link MAX_NAMES}, for each connection keeps all that it has met. Needs connections of our own:
 * a pooler between us and PostgreSQL must keep a session's prepared statements.
 */
import type { Socket } from 'node:net';
import pg from 'pg';
import { BEGIN, BEGIN_NAME, begunQuery } from './begun-query.ts';

/**
 * At the start of a text: no name. For what finds little now and may find much soon: a plan that was made for a small
 * table is kept until the table is analysed, a minute later or more.
 */
export const PLANNED_EACH_TIME = '/* planned each time */';

const FROM_USE = 10;
const MAX_NAMES = 200;
/** Texts that are counted towards a name; when there are more, counting begins anew. */
const MAX_COUNTED = 2_000;

export class StatementNames {
  readonly #names = new Map<string, string>();
  readonly #uses = new Map<string, number>();
  #given = 0;

  /** The name of a statement; undefined while it has none. */
  nameOf(text: string): string | undefined {
    if (text.startsWith(PLANNED_EACH_TIME)) return undefined;
    const name = this.#names.get(text);
    if (name !== undefined || this.#names.size >= MAX_NAMES) return name;
    const uses = (this.#uses.get(text) ?? 0) + 1;
    if (uses < FROM_USE) {
      if (this.#uses.size >= MAX_COUNTED) this.#uses.clear();
      this.#uses.set(text, uses);
      return undefined;
    }
    this.#uses.delete(text);
    this.#given += 1;
    this.#names.set(text, `berth_${this.#given}`);
    return this.#names.get(text);
  }

  /** Every text gets a new name: what was prepared under the old ones is of no use any more. */
  forget(): void {
    this.#names.clear();
  }
}

/** A table was altered under a prepared `select *`: only another name helps. */
function planIsStale(error: unknown): boolean {
  return error instanceof pg.DatabaseError && error.code === '0A000' && /cached plan/.test(error.message);
}

type Arguments = readonly unknown[];

/**
 * A client that names the parameterised statements given as text and values, and sends BEGIN with what comes next.
 * A transaction of no statement is none.
 */
export function clientNaming(names: StatementNames): typeof pg.Client {
  class NamingClient extends pg.Client {
    /** BEGIN was asked for and is not sent. */
    #begins = false;

    override query(...args: unknown[]): never {
      this.#gather();
      const [text] = args;
      if (text === BEGIN) return this.#begin() as never;
      if (this.#begins && (text === 'commit' || text === 'rollback')) {
        this.#begins = false;
        return Promise.resolve({ command: text.toUpperCase(), rows: [], rowCount: null }) as never;
      }
      const name = nameIn(args);
      if (name === undefined) return this.#send(args) as never;
      return this.#send([{ name, text, values: args[1] }]).catch((error: unknown) => {
        if (planIsStale(error)) names.forget();
        throw error;
      }) as never;
    }

    #begin(): Promise<unknown> {
      if (!(BEGIN_NAME in this.#wire.parsedStatements))
        return this.#send([{ name: BEGIN_NAME, text: BEGIN }]);
      this.#begins = true;
      return Promise.resolve({ command: 'BEGIN', rows: [], rowCount: null });
    }

    #send(args: Arguments): Promise<unknown> {
      const query = (...given: Arguments) =>
        (super.query as (...given: unknown[]) => Promise<unknown>).apply(this, [...given]);
      if (!this.#begins) return query(...args);
      this.#begins = false;
      return begunQuery(args, query);
    }

    get #wire() {
      return (this as unknown as { readonly connection: Wire }).connection;
    }

    /** What is asked for at one time (the statements that go with COMMIT) goes out in one write. */
    #gather(): void {
      const { stream } = this.#wire;
      if (stream.writableCorked > 0) return;
      stream.cork();
      process.nextTick(() => stream.uncork());
    }
  }

  function nameIn(args: Arguments): string | undefined {
    const [text, values] = args;
    if (typeof text !== 'string' || !Array.isArray(values) || values.length === 0 || args.length > 2)
      return undefined;
    return names.nameOf(text);
  }
  return NamingClient as unknown as typeof pg.Client;
}

/** What the driver keeps to itself of a connection. */
interface Wire {
  readonly stream: Socket;
  readonly parsedStatements: Readonly<Record<string, string>>;
}
