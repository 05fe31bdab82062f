import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { arrayText } from '../../src/db/array-text.ts';
import { openPool } from '../../src/db/pool.ts';
import { startDatabase } from '../support/database.ts';

const database = await startDatabase();
const db = openPool(database.url, () => undefined);
after(async () => {
  await db.destroy();
  await database.close();
});

async function read(type: string, values: readonly (string | number | null)[]) {
  const { rows } = await sql<{ read: unknown[] }>`
    select ${arrayText(values)}::${sql.raw(type)}[] as read`.execute(db);
  return rows[0]?.read;
}

test('PostgreSQL reads what was given, whatever is in it', async () => {
  const texts = [
    '',
    ' ',
    'null',
    'NULL',
    null,
    'whd_01jabc',
    'a,b',
    '{a}',
    '"',
    '\\',
    '\\"\n\t\r',
    'a b ',
    "it's",
    'é\u{1f600}',
    '[1:2]={a,b}',
    '-1',
  ];
  assert.deepEqual(await read('text', texts), texts);
  assert.deepEqual(await read('text', []), []);
  assert.deepEqual(await read('text', ['']), ['']);
  assert.deepEqual(await read('int', [0, -1, null, 2_147_483_647]), [0, -1, null, 2_147_483_647]);
});

test('numbers and times come as they went', async () => {
  const { rows } = await sql<{ big: number; at: Date }>`
    select * from unnest(${arrayText([Number.MAX_SAFE_INTEGER])}::bigint[],
      ${arrayText(['2026-01-02T03:04:05.678Z'])}::timestamptz[]) as t (big, at)`.execute(db);
  assert.deepEqual(rows, [{ big: Number.MAX_SAFE_INTEGER, at: new Date('2026-01-02T03:04:05.678Z') }]);
});
