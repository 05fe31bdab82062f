/**
 * Names for statements that recur: PostgreSQL then parses them once per connection and soon plans them once. A text gets a
 * name at its tenth use, so that texts with lists of varying length do not take the names of those that recur, and there
 * are at most {@link MAX_NAMES}, because every connection keeps each statement that it has prepared. A pooler between us
 * and PostgreSQL must keep prepared statements per session.
 */
import type { PostgresPool, PostgresPoolClient } from 'kysely';
import pg from 'pg';
import type { ServerPool } from './server-pool.ts';

/**
 * At the start of a text: it gets no name. For statements whose tables may grow fast: a plan made for a small table is
 * kept until the table is analysed, a minute later or more.
 */
export const PLANNED_EACH_TIME = '/* planned each time */';

const FROM_USE = 10;
const MAX_NAMES = 200;
/** Texts whose uses are counted; at more, counting starts again. */
const MAX_COUNTED = 2_000;

class StatementNames {
  readonly #names = new Map<string, string>();
  readonly #uses = new Map<string, number>();
  #given = 0;

  /** Undefined: the statement has no name, or not yet. */
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

  /** From now on every text gets a new name. */
  clear(): void {
    this.#names.clear();
  }
}

/** A table was altered under a prepared `select *`: only another name helps. */
export function isPlanStale(error: unknown): boolean {
  return error instanceof pg.DatabaseError && error.code === '0A000' && /cached plan/.test(error.message);
}

/**
 * `pool` in the form that Kysely takes, which sends statements with parameters under their names. `onError` gets the error
 * of each failed statement and must not throw.
 */
export function poolWithNames(pool: ServerPool, onError: (error: unknown) => void): PostgresPool {
  const names = new StatementNames();
  const wrap = (client: pg.PoolClient): PostgresPoolClient => {
    const query = async (text: string, values: readonly unknown[]): Promise<pg.QueryResult> => {
      const name = values.length === 0 ? undefined : names.nameOf(text);
      try {
        const statement = { text, values: [...values], ...(name !== undefined && { name }) };
        return await pool.query(client, statement);
      } catch (error) {
        if (isPlanStale(error)) names.clear();
        onError(error);
        throw error;
      }
    };
    return {
      // Its other form takes a cursor, which we do not use.
      query: query as unknown as PostgresPoolClient['query'],
      release: (destroy) => pool.release(client, destroy === true),
    };
  };
  // Kysely keeps state per client.
  const wrapped = new WeakMap<pg.PoolClient, PostgresPoolClient>();
  const connect = async (): Promise<PostgresPoolClient> => {
    const client = await pool.connect();
    const known = wrapped.get(client) ?? wrap(client);
    wrapped.set(client, known);
    return known;
  };
  return { options: {}, connect, end: () => pool.end() };
}
