/**
 * Transactions that read nothing, several as one: those that are ready while others are on their way to the disk go
 * together in the next, in one write and with one fsync. Each is still whole or not there at all: where one of them fails,
 * all are rolled back and each is sent alone.
 */
import type { CompiledQuery } from 'kysely';
import pg from 'pg';
import { composer } from './composer.ts';
import { endOfTurn } from './end-of-turn.ts';
import type { LookUpStatement } from './look-up-statement.ts';
import {
  type Db,
  gatherEnding,
  isUnavailable,
  meant,
  newEnding,
  poolOf,
  sqlStateOf,
  type Tx,
  tryAgain,
  waitedForLock,
} from './pool.ts';
import { inserted } from './row-insert.ts';
import { BEGIN, commitWith } from './statement-names.ts';

const DIVISION_BY_ZERO = '22012';
/** Transactions in one. */
const MAX_TOGETHER = 64;
/** On their way at once. */
const MAX_UNDER_WAY = 2;

/** What a transaction goes by as it was told by a look-up before it, to be told again within it. */
export interface Proof {
  /** Fails, by a division by zero, where it is told otherwise now. */
  readonly by: LookUpStatement;
  readonly told: readonly unknown[];
}

/** What a transaction goes by is not so any more; nothing of it was done. */
export class DisprovedError extends Error {
  override name = 'DisprovedError';
}

interface Change {
  readonly proofs: readonly Proof[];
  /** All committed, or none. */
  readonly statements: readonly CompiledQuery[];
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

class BlindWrites {
  readonly #pool: pg.Pool;
  #waiting: Change[] = [];
  #under_way = 0;

  constructor(pool: pg.Pool) {
    this.#pool = pool;
  }

  write(statements: readonly CompiledQuery[], proofs: readonly Proof[]): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ statements, proofs, resolve, reject });
      if (this.#under_way < MAX_UNDER_WAY) void this.#work();
    });
  }

  /** Never rejects. */
  async #work(): Promise<void> {
    this.#under_way += 1;
    await endOfTurn();
    while (this.#waiting.length > 0) {
      const changes = this.#waiting.slice(0, MAX_TOGETHER);
      this.#waiting = this.#waiting.slice(MAX_TOGETHER);
      try {
        await tryAgain(() => this.#send(changes));
        for (const { resolve } of changes) resolve();
      } catch (error) {
        // A connection that breaks leaves open whether it was committed: not to be sent again.
        const by_one = changes.length > 1 && error instanceof pg.DatabaseError && !endsConnection(error);
        for (const change of changes) {
          if (by_one) await tryAgain(() => this.#send([change])).then(change.resolve, change.reject);
          else change.reject(error);
        }
      }
    }
    this.#under_way -= 1;
  }

  async #send(changes: readonly Change[]): Promise<void> {
    const client = await this.#pool.connect();
    let is_broken = false;
    try {
      await client.query(BEGIN.text);
      const rows = inserted(changes.flatMap(({ statements }) => statements));
      const { sql, parameters } = commitWith([...proofsOf(changes), ...rows]);
      await client.query(sql, [...parameters]);
    } catch (error) {
      // PostgreSQL says that it ends the connection before it does: nobody is to be lent it in between.
      is_broken = endsConnection(error);
      throw error;
    } finally {
      client.release(is_broken);
    }
  }
}

function endsConnection(error: unknown): boolean {
  return isUnavailable(error) && !waitedForLock(error);
}

/** Before anything else: what one of them refuses is not begun. */
function proofsOf(changes: readonly Change[]): readonly CompiledQuery[] {
  const all = changes.flatMap(({ proofs }) => proofs);
  return [...Map.groupBy(all, ({ by }) => by)].map(([by, them]) => by.of(them.map(({ told }) => told)));
}

const writers = new WeakMap<Db, BlindWrites>();

function writerOf(db: Db): BlindWrites {
  const writer = writers.get(db) ?? new BlindWrites(poolOf(db));
  writers.set(db, writer);
  return writer;
}

/**
 * A transaction whose work writes with {@link atCommit} alone and asks nothing of the database. It needs no connection
 * of its own. `work` runs once. @throws DisprovedError
 */
export async function blindTransaction<T>(
  db: Db,
  work: (tx: Tx) => Promise<T>,
  proofs: readonly Proof[] = [],
): Promise<T> {
  const ending = newEnding();
  // A Kysely of its own: what is gathered is known by it.
  const tx: Tx = composer.withTables<Record<never, never>>();
  gatherEnding(tx, ending);
  const result = await work(tx);
  try {
    if (ending.last.length > 0 || proofs.length > 0) await writerOf(db).write(ending.last, proofs);
  } catch (error) {
    if (proofs.length > 0 && sqlStateOf(error) === DIVISION_BY_ZERO)
      throw new DisprovedError('not so any more', { cause: error });
    throw meant(ending, error);
  }
  for (const effect of ending.effects) effect();
  return result;
}
