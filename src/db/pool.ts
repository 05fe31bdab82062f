import { type CompiledQuery, Kysely, sql, type Transaction } from 'kysely';
import pg from 'pg';
import { assert, present } from '../lib/assert.ts';
import { CommittingDialect, withCommit } from './commit.ts';
import { clientNaming, StatementNames } from './statement-names.ts';
import type { Database } from './tables.ts';

export type Db = Kysely<Database>;
/** What every store function takes: a transaction, or the pool for a single statement. */
export type Tx = Kysely<Database> | Transaction<Database>;

const INT8_OID = 20;
const NUMERIC_OID = 1700;

function parseInteger(text: string): number {
  const value = Number(text);
  assert(Number.isSafeInteger(value), `bigint out of range: ${text}`);
  return value;
}

/** Whether `error` says that a transaction was given up for waiting for a lock (SQLSTATE 55P03); its connection is well. */
export function waitedForLock(error: unknown): boolean {
  return sqlStateOf(error) === '55P03';
}

const types: pg.CustomTypesConfig = {
  getTypeParser: (oid: number, format?: 'text' | 'binary') =>
    oid === INT8_OID || oid === NUMERIC_OID ? parseInteger : pg.types.getTypeParser(oid, format ?? 'text'),
} as pg.CustomTypesConfig;

/** A quiet connection is asked about after so long: firewalls forget such connections, and hosts go without a word. */
export const KEEP_ALIVE = { keepAlive: true, keepAliveInitialDelayMillis: 10_000 } as const;
/** The server ends a statement well before this. Who has no answer by then gets none: the server cannot be heard. */
export const UNHEARD_MS = 60_000;

/**
 * How long a transaction may wait for its client, or for a lock. One that hangs after it has written an event holds up
 * all later events (ADR 41), and one that hangs with a lock all who want that.
 */
const HANGS_MS = 5_000;

/** What has once failed for want of room says so for that long: to find out whether there is some again takes a write. */
const FULL_FOR_MS = 30_000;

/**
 * Options every connection of the program has. `statement_timeout_ms` bounds any one statement; 0, for long work on a
 * connection of its own: nothing does, nor is it given up for a lock.
 */
export function connectionOptions(url: string, statement_timeout_ms = 30_000): pg.ClientConfig {
  return {
    ...KEEP_ALIVE,
    connectionString: url,
    types,
    statement_timeout: statement_timeout_ms,
    connectionTimeoutMillis: 5_000,
    ...(statement_timeout_ms === 0
      ? { idle_in_transaction_session_timeout: 60_000 }
      : {
          idle_in_transaction_session_timeout: HANGS_MS,
          lock_timeout: HANGS_MS,
          query_timeout: UNHEARD_MS,
        }),
    // Tables are in memory or on flash: indexes before scans, also in plans that were made while a table was small.
    options: '-c random_page_cost=1.1',
  };
}

/** A pool of up to `max` connections. `onError` hears of idle connections that broke (never throws). */
export function openPool(url: string, onError: (error: Error) => void, max = 20): Db {
  let full_until_ms = 0;
  const client = clientNaming(new StatementNames(), (error) => {
    if (isFull(error)) full_until_ms = performance.now() + FULL_FOR_MS;
  });
  const pool = new pg.Pool({ ...connectionOptions(url), max, pipeline: true, Client: client });
  // The pool listens to idle connections only; one that breaks while it is lent out must not end the process.
  pool.on('connect', (client) => client.on('error', () => undefined));
  pool.on('error', onError);
  const db = new Kysely<Database>({ dialect: new CommittingDialect({ pool }) });
  pools.set(db, pool);
  shortages.set(db, () => performance.now() < full_until_ms);
  return db;
}

const pools = new WeakMap<Db, pg.Pool>();
const shortages = new WeakMap<Db, () => boolean>();

/** Whether a statement failed within the last {@link FULL_FOR_MS} because the database's disk is full. */
export function lacksRoom(db: Db): boolean {
  return shortages.get(db)?.() ?? false;
}

/** The connections of one that `openPool` has opened. */
export function poolOf(db: Db): pg.Pool {
  return present(pools.get(db), 'a pool of this program');
}

/** Resolves when the database answers. */
export async function ping(db: Db): Promise<void> {
  await sql`select 1`.execute(db);
}

/** How many connections of a pool there are in each state, and how many callers wait for one. */
export function poolState(db: Db): Record<'used' | 'idle' | 'waiting', number> {
  const { totalCount = 0, idleCount = 0, waitingCount = 0 } = pools.get(db) ?? {};
  return { used: totalCount - idleCount, idle: idleCount, waiting: waitingCount };
}

export interface Ending {
  readonly last: CompiledQuery[];
  readonly effects: (() => void)[];
  /** What an error of the database means to those who wrote. */
  readonly meanings: ((error: unknown) => unknown)[];
}

/** What goes with, and what follows, the commit of each transaction under way. */
const endings = new WeakMap<Tx, Ending>();

/** From now on `ending` has what {@link atCommit} and {@link afterCommit} are told of `tx`. */
export function gatherEnding(tx: Tx, ending: Ending): void {
  endings.set(tx, ending);
}

export const newEnding = (): Ending => ({ last: [], effects: [], meanings: [] });

/** What to throw for an error of the transaction's. */
export function meant({ meanings }: Ending, error: unknown): unknown {
  return meanings.reduce((so_far, meaning) => meaning(so_far), error);
}

/** Runs `effect` once the transaction is committed, never if it is not. Outside of `transaction`: at once. */
export function afterCommit(tx: Tx, effect: () => void): void {
  const effects = endings.get(tx)?.effects;
  if (effects === undefined) effect();
  else if (!effects.includes(effect)) effects.push(effect);
}

/**
 * Sends `statement` in one go with COMMIT, which saves its round trip: nothing in the transaction may need its answer.
 * An error of the transaction's is passed through `meaning`, which answers what to throw instead, or the same error.
 * Outside of `transaction`: at once.
 */
export async function atCommit(
  tx: Tx,
  statement: CompiledQuery,
  meaning: (error: unknown) => unknown = (error) => error,
): Promise<void> {
  const ending = endings.get(tx);
  if (ending) {
    ending.last.push(statement);
    ending.meanings.push(meaning);
    return;
  }
  try {
    await tx.executeQuery(statement);
  } catch (error) {
    throw meaning(error);
  }
}

const RETRYABLE = new Set(['40001', '40P01']);
const TRIES = 4;

/** Runs `work` again where PostgreSQL asks for it (serialization failure, deadlock). */
export async function tryAgain<T>(work: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      if (attempt >= TRIES || !RETRYABLE.has(sqlStateOf(error) ?? '')) throw error;
    }
  }
}

/**
 * Runs `work` in one transaction (read committed), again up to three times when PostgreSQL asks for it
 * (serialization failure, deadlock). `work` must have no effect but on the database.
 */
export async function transaction<T>(db: Db, work: (tx: Transaction<Database>) => Promise<T>): Promise<T> {
  return tryAgain(async () => {
    const ending = newEnding();
    const run = (tx: Transaction<Database>) => {
      gatherEnding(tx, ending);
      return work(tx);
    };
    try {
      const result = await withCommit(ending.last, () => db.transaction().execute(run));
      for (const effect of ending.effects) effect();
      return result;
    } catch (error) {
      throw RETRYABLE.has(sqlStateOf(error) ?? '') ? error : meant(ending, error);
    }
  });
}

/** The SQLSTATE of an error that PostgreSQL sent, if it is one. */
export function sqlStateOf(error: unknown): string | undefined {
  return error instanceof pg.DatabaseError ? error.code : undefined;
}

/** Whether `error` is the violation of the unique constraint or index `constraint`. */
export function violates(error: unknown, constraint: string): boolean {
  return error instanceof pg.DatabaseError && error.code === '23505' && error.constraint === constraint;
}

/** Whether `error` is the violation of a foreign key of `table` (or of this one): what a row there names is not there. */
export function isForeignKeyOf(error: unknown, table: keyof Database, constraint?: string): boolean {
  if (!(error instanceof pg.DatabaseError) || error.code !== '23503') return false;
  return error.table === table && (constraint === undefined || error.constraint === constraint);
}

/** Whether `error` says that there was no answer for {@link UNHEARD_MS}. */
export function isUnheard(error: unknown): boolean {
  return error instanceof Error && error.message === 'Query read timeout';
}

/** Whether `error` says that the database's disk is full (SQLSTATE 53100). */
export function isFull(error: unknown): boolean {
  return sqlStateOf(error) === '53100';
}

/**
 * Whether `error` says that the database cannot be reached or is going away (SQLSTATE classes 08, 53, 57P), or that it has
 * given up a transaction for hanging (25P03) or for waiting for a lock (55P03).
 */
export function isUnavailable(error: unknown): boolean {
  const state = sqlStateOf(error);
  if (state !== undefined) return /^(08|53|57P|25P03|55P03)/.test(state);
  if (!(error instanceof Error)) return false;
  if (isUnheard(error)) return true;
  const code = (error as NodeJS.ErrnoException).code ?? '';
  return (
    ['ECONNREFUSED', 'ECONNRESET', 'ENOENT', 'EPIPE', 'ETIMEDOUT', 'ENOTFOUND', 'EACCES'].includes(code) ||
    /Connection terminated|timeout exceeded when trying to connect|Client has encountered a connection error/.test(
      error.message,
    )
  );
}
