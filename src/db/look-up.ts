/**
 * Single statements that are asked for at one time go out together: one connection, one write, and PostgreSQL is woken
 * once. To write to a socket costs more than to find a row, so a request that looks up its caller and what it asks for
 * is served in little more than the time of one.
 *
 * They are no transaction: each has its own answer or error, and sees what is committed when it begins.
 */
import type { CompiledQuery } from 'kysely';
import type pg from 'pg';
import { type Db, poolOf } from './pool.ts';

interface Asked {
  readonly statement: CompiledQuery;
  readonly resolve: (rows: readonly unknown[]) => void;
  readonly reject: (error: unknown) => void;
}

/** What waits for a connection, by the pool that it will be of. */
const waiting = new WeakMap<pg.Pool, Asked[]>();

/** The rows of `statement`, outside of any transaction. */
export function lookUp<Row>(db: Db, statement: CompiledQuery<Row>): Promise<readonly Row[]> {
  const pool = poolOf(db);
  return new Promise<readonly unknown[]>((resolve, reject) => {
    const asked = { statement, resolve, reject };
    const others = waiting.get(pool);
    if (others) others.push(asked);
    else {
      waiting.set(pool, [asked]);
      void send(pool);
    }
  }) as Promise<readonly Row[]>;
}

/** Never rejects. */
async function send(pool: pg.Pool): Promise<void> {
  let client: pg.PoolClient;
  try {
    client = await pool.connect();
  } catch (error) {
    for (const { reject } of taken(pool)) reject(error);
    return;
  }
  await Promise.all(
    taken(pool).map(({ statement, resolve, reject }) =>
      client.query(statement.sql, [...statement.parameters]).then(({ rows }) => resolve(rows), reject),
    ),
  );
  client.release();
}

function taken(pool: pg.Pool): readonly Asked[] {
  const asked = waiting.get(pool) ?? [];
  waiting.delete(pool);
  return asked;
}
