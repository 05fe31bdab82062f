/**
 * Opens the pool of connections to PostgreSQL, runs transactions, and tells what PostgreSQL's errors mean.
 * `transaction` repeats its work after a deadlock or a serialization failure; `afterCommit` runs an effect once the
 * commit is done.
 */
import {
  Kysely,
  PostgresDialect,
  type PostgresPool,
  type PostgresPoolClient,
  sql,
  type Transaction,
} from 'kysely';
import pg from 'pg';
import { present } from '../../shared/assert.ts';
import { NoServerError } from './connect.ts';
import { ServerPool } from './server-pool.ts';
import type { Database } from './tables.ts';

export type Db = Kysely<Database>;
/** What every store function takes: a transaction, or the pool for a single statement. */
export type Tx = Kysely<Database> | Transaction<Database>;

/** After a failure for lack of space the disk counts as full for so long: only a write shows whether there is space again. */
const FULL_FOR_MS = 30_000;

/** A pool of up to `max` connections. `onError` gets errors of idle connections and must not throw. */
export function openPool(url: string, onError: (error: Error) => void, max = 20): Db {
  const pool = new ServerPool(url, max, onError);
  const state = { pool, full_until_ms: 0 };
  const dialect = new PostgresDialect({
    pool: forKysely(pool, (error) => {
      if (isFull(error)) state.full_until_ms = performance.now() + FULL_FOR_MS;
    }),
  });
  const db = new Kysely<Database>({ dialect });
  states.set(db, state);
  return db;
}

const states = new WeakMap<Db, { readonly pool: ServerPool; full_until_ms: number }>();

/** `pool` in the form that Kysely takes. `onFailed` gets the error of each failed statement and must not throw. */
function forKysely(pool: ServerPool, onFailed: (error: unknown) => void): PostgresPool {
  const wrap = (client: pg.PoolClient): PostgresPoolClient => {
    const query = async (text: string, values: readonly unknown[]): Promise<pg.QueryResult> => {
      try {
        return await pool.query(client, { text, values: [...values] });
      } catch (error) {
        onFailed(error);
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

/** Whether a statement failed within the last {@link FULL_FOR_MS} because the database's disk is full. */
export function hasFailedForSpace(db: Db): boolean {
  return performance.now() < (states.get(db)?.full_until_ms ?? 0);
}

/** Resolves when the database answers. */
export async function ping(db: Db): Promise<void> {
  await sql`select 1`.execute(db);
}

/** The time that all control planes share. Each one's own clock may be wrong. */
export async function databaseTime(tx: Tx): Promise<Date> {
  const { rows } = await sql<{ now: Date }>`select clock_timestamp() as now`.execute(tx);
  return present(rows[0], 'the time').now;
}

/** How many connections of a pool there are in each state, and how many callers wait for one. */
export function poolState(db: Db): Record<'used' | 'idle' | 'waiting', number> {
  return states.get(db)?.pool.counts() ?? { used: 0, idle: 0, waiting: 0 };
}

/** The effects to run after each open transaction's commit. */
const after_commit = new WeakMap<Tx, (() => void)[]>();

/** Runs `effect` once the transaction is committed, never if it is not. Outside of `transaction`: at once. */
export function afterCommit(tx: Tx, effect: () => void): void {
  const effects = after_commit.get(tx);
  if (effects === undefined) effect();
  else if (!effects.includes(effect)) effects.push(effect);
}

const RETRYABLE = new Set(['40001', '40P01']);
const TRIES = 4;

/**
 * Runs `work` in one transaction (read committed). On a serialization failure or a deadlock, repeats it
 * up to three times, so `work` must have no effect outside of the database.
 */
export async function transaction<T>(db: Db, work: (tx: Transaction<Database>) => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    const effects: (() => void)[] = [];
    try {
      const result = await db.transaction().execute((tx) => {
        after_commit.set(tx, effects);
        return work(tx);
      });
      for (const effect of effects) effect();
      return result;
    } catch (error) {
      if (attempt >= TRIES || !RETRYABLE.has(sqlStateOf(error) ?? '')) throw error;
    }
  }
}

/** The SQLSTATE of an error that PostgreSQL sent, if it is one. */
export function sqlStateOf(error: unknown): string | undefined {
  return error instanceof pg.DatabaseError ? error.code : undefined;
}

/** Whether `error` is the violation of the unique constraint or index `constraint`. */
export function violates(error: unknown, constraint: string): boolean {
  return error instanceof pg.DatabaseError && error.code === '23505' && error.constraint === constraint;
}

/** Whether `error` is the violation of a foreign key (`constraint`, or any) of `table`. */
export function isForeignKeyOf(error: unknown, table: keyof Database, constraint?: string): boolean {
  if (!(error instanceof pg.DatabaseError) || error.code !== '23503') return false;
  return error.table === table && (constraint === undefined || error.constraint === constraint);
}

/** Whether `error` says that the server did not answer for `NO_ANSWER_MS`. */
export function isNoAnswer(error: unknown): boolean {
  return error instanceof Error && error.message === 'Query read timeout';
}

/** Whether `error` says that the database's disk is full (SQLSTATE 53100). */
export function isFull(error: unknown): boolean {
  return sqlStateOf(error) === '53100';
}

const LOST = [
  ...['ECONNREFUSED', 'ECONNRESET', 'ENOENT', 'EPIPE', 'ETIMEDOUT', 'ENOTFOUND', 'EACCES', 'EAI_AGAIN'],
  ...['EHOSTUNREACH', 'ENETUNREACH'],
];

/**
 * Whether `error` says that the database cannot be reached or is shutting down (SQLSTATE classes 08, 53, 57P), that its server
 * takes no writes (25006), that it aborted a transaction for sitting idle (25P03) or for waiting for a lock (55P03), or that this
 * process is shutting down and has ended the pool.
 * A repeat may succeed. A commit that failed so may have happened.
 */
export function isUnavailable(error: unknown): boolean {
  const state = sqlStateOf(error);
  if (state !== undefined) return /^(08|53|57P|25006|25P03|55P03)/.test(state);
  if (!(error instanceof Error)) return false;
  if (isNoAnswer(error) || error instanceof NoServerError) return true;
  return (
    LOST.includes((error as NodeJS.ErrnoException).code ?? '') ||
    /Connection terminated|timeout expired|timeout exceeded when trying to connect|is not queryable|driver has already been destroyed/.test(
      error.message,
    )
  );
}
