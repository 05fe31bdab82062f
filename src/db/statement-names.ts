/**
 * Names for statements that come again: PostgreSQL then parses them once a connection, and soon plans them once. A text
 * is named from its tenth use, so one with a list of changing length does not take a name from those that matter, and
 * there are at most {@link MAX_NAMES}, for each connection keeps all that it has met. Needs connections of our own:
 * a pooler between us and PostgreSQL must keep a session's prepared statements.
 */
import type { Socket } from 'node:net';
import { CompiledQuery } from 'kysely';
import pg from 'pg';
import { ask, ForgettingQuery, type Statement } from './driver-query.ts';
import { TogetherQuery } from './together-query.ts';

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

export const BEGIN = { text: 'begin', name: 'berth_begin' } as const;
const COMMIT = { text: 'commit', name: 'berth_commit' } as const;

/** COMMIT, and `statements` in one go with it, in their order. */
export function commitWith(statements: readonly CompiledQuery[]): CompiledQuery {
  return CompiledQuery.raw(COMMIT.text, [...statements]);
}

/**
 * A client that names the parameterised statements given as text and values, and sends BEGIN with what comes next. A
 * transaction of no statement is none; one of nothing but what goes with COMMIT needs neither BEGIN nor COMMIT.
 * `failed` hears of what a statement fails with (never throws).
 */
export function clientNaming(names: StatementNames, failed: (error: unknown) => void): typeof pg.Client {
  class NamingClient extends pg.Client {
    /** `asked`: BEGIN was, and is not sent. `unneeded`: there was a transaction without it. */
    #begin: 'sent' | 'asked' | 'unneeded' = 'sent';

    override query(...args: unknown[]): never {
      this.#gather();
      const [text, values = []] = args;
      if (typeof text !== 'string' || !Array.isArray(values) || args.length > 2)
        return this.#send(...args) as never;
      return this.#run(text, values).catch((error: unknown) => {
        if (planIsStale(error)) names.forget();
        failed(error);
        // The driver made it where the answer was read: it is to say who asked.
        if (error instanceof Error) Error.captureStackTrace(error);
        throw error;
      }) as never;
    }

    #run(text: string, values: readonly unknown[]): Promise<unknown> {
      const begin = this.#begin;
      this.#begin = text === BEGIN.text ? 'asked' : 'sent';
      if (text === BEGIN.text) return completed('BEGIN');
      if (text === COMMIT.text) return this.#commit(begin, (values as readonly CompiledQuery[]).map(named));
      if (text === 'rollback' && begin !== 'sent') return completed('ROLLBACK');
      const statement = named({ sql: text, parameters: values });
      if (begin === 'asked') return this.#together([BEGIN, statement]);
      return this.#one(statement);
    }

    #commit(
      begin: 'sent' | 'asked' | 'unneeded',
      [first, ...others]: readonly Statement[],
    ): Promise<unknown> {
      if (first === undefined)
        return begin === 'asked' ? completed('COMMIT') : this.#one({ text: COMMIT.text });
      if (begin !== 'asked') return this.#together([first, ...others, COMMIT]);
      this.#begin = 'unneeded';
      return this.#together([first, ...others]).then(() => completed('COMMIT'));
    }

    #together(statements: readonly [Statement, ...Statement[]]): Promise<unknown> {
      return ask(
        (done) => new TogetherQuery(statements, done),
        (query) => this.#send(query),
      );
    }

    #one(statement: Statement): Promise<unknown> {
      return ask(
        (done) => new ForgettingQuery(statement, undefined, done),
        (query) => this.#send(query),
      );
    }

    #send(...args: readonly unknown[]): Promise<unknown> {
      return (super.query as (...given: unknown[]) => Promise<unknown>).apply(this, [...args]);
    }

    /** What is asked for at one time goes out in one write. */
    #gather(): void {
      const { stream } = (this as unknown as { readonly connection: { readonly stream: Socket } }).connection;
      if (stream.writableCorked > 0) return;
      stream.cork();
      process.nextTick(() => stream.uncork());
    }
  }

  function named({ sql, parameters }: Pick<CompiledQuery, 'sql' | 'parameters'>): Statement {
    const name = parameters.length === 0 ? undefined : names.nameOf(sql);
    return { text: sql, values: parameters, ...(name !== undefined && { name }) };
  }
  return NamingClient as unknown as typeof pg.Client;
}

async function completed(command: string): Promise<object> {
  return { command, rows: [], rowCount: null };
}
