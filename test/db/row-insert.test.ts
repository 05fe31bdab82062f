/** Rows of one table that are written at one time. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { CompiledQuery, sql } from 'kysely';
import { blindTransaction } from '../../src/db/blind-writes.ts';
import { atCommit, openPool } from '../../src/db/pool.ts';
import { inserted, RowInsert } from '../../src/db/row-insert.ts';
import { startDatabase } from '../support/database.ts';

const database = await startDatabase();
const pool = openPool(database.url, () => undefined);
after(async () => {
  await pool.destroy();
  await database.close();
});
await sql`
  create table samples (serial bigint generated always as identity, id text primary key, words text[], bytes bytea,
                        at timestamptz, data jsonb)`.execute(pool);

const SAMPLES = new RowInsert('samples' as never, {
  id: 'text',
  words: 'text[]',
  bytes: 'bytea',
  at: 'timestamptz',
  data: 'jsonb',
});
const AT = new Date('2026-02-03T04:05:06.789Z');
const ODD = ['', '{}', 'NULL', 'a"b\\c', "it's {1,2}", 'ä\n\t☃'];
const sample = (id: string) => SAMPLES.of([id, ODD, Buffer.from([0, 255, 92]), AT, JSON.stringify({ ODD })]);
const none = (id: string) => SAMPLES.of([id, [], null, null, 'null']);

test('many rows are kept as each would be alone, in their order', async () => {
  const together = inserted([...ODD.map(sample), none('none')]);
  assert.equal(together.length, 1);
  for (const statement of together) await pool.executeQuery(statement);
  for (const id of ODD) await pool.executeQuery(sample(`alone ${id}`));
  await pool.executeQuery(none('alone none'));
  const { rows } = await sql<{ id: string; words: unknown; bytes: unknown; at: unknown; data: unknown }>`
    select id, words, bytes, at, data from samples order by serial`.execute(pool);
  const ids = [...ODD, 'none'];
  assert.deepEqual(
    rows.map(({ id }) => id),
    [...ids, ...ids.map((id) => `alone ${id}`)],
  );
  for (const [at, row] of rows.slice(0, ids.length).entries()) {
    assert.deepEqual({ ...row, id: `alone ${row.id}` }, rows[ids.length + at]);
  }
  assert.deepEqual(rows[0]?.words, ODD);
  assert.deepEqual(rows[0]?.data, { ODD });
});

test('what does anything but insert rows keeps statements as they are', () => {
  const statements = [none('1'), CompiledQuery.raw('select 1'), none('2')];
  assert.deepEqual(inserted(statements), statements);
});

test('blind transactions of one moment share a statement, and one that cannot be fails alone', async () => {
  const outcomes = await Promise.allSettled(
    Array.from({ length: 30 }, (_, n) =>
      blindTransaction(pool, async (tx) => {
        await atCommit(tx, none(`blind ${n}`));
        await atCommit(tx, none(n % 10 === 0 ? `blind ${n}` : `second ${n}`));
      }),
    ),
  );
  for (const [n, { status }] of outcomes.entries()) assert.equal(status === 'rejected', n % 10 === 0);
  const { rows } = await sql<{ count: number }>`
    select count(*) from samples where id like 'blind %' or id like 'second %'`.execute(pool);
  assert.equal(rows[0]?.count, 27 * 2);
});
