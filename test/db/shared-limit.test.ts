/** Limits that all control planes count together. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { deleteEndedWindows, SharedLimit } from '../../src/control-plane/db/shared-limit.ts';
import { startDatabase } from '../support/database.ts';

const { db, close } = await startDatabase();
after(close);

const MINUTE_MS = 60_000;
/** Its clock stands still: it remembers for ever what is used up. */
const limit = (most: number, now_ms = () => 0) =>
  new SharedLimit(db, { name: 'test', most, window_s: 60 }, now_ms);
const endWindows = () => sql`update request_counts set expire = expire - ${MINUTE_MS}`.execute(db);

test('what one process has counted is missing to the other; another key has a window of its own', async () => {
  const [first, second] = [limit(3), limit(3)];
  assert.equal((await first.count('a')).left, 2);
  assert.equal((await second.count('a')).left, 1);
  const last = await first.count('a');
  assert.deepEqual([last.left, last.is_over], [0, false]);
  for (const each of [first, second, first]) assert.equal((await each.count('a')).is_over, true);
  assert.equal((await second.count('b')).left, 2);
});

test('of many at a time exactly so many are within the limit', async () => {
  const [first, second] = [limit(20), limit(20)];
  const counted = await Promise.all(
    Array.from({ length: 50 }, (_, n) => (n % 2 === 0 ? first : second).count('many')),
  );
  assert.equal(counted.filter(({ is_over }) => !is_over).length, 20);
});

test('the window begins with its first count and ends for all; who knows that it is used up does not ask', async () => {
  let now_ms = 0;
  const [first, second] = [limit(1, () => now_ms), limit(1)];
  const { ends_in_ms } = await first.count('c');
  assert.ok(ends_in_ms > MINUTE_MS - 5_000 && ends_in_ms <= MINUTE_MS, `${ends_in_ms} ms`);
  assert.ok(first.isUsedUp('c') && !second.isUsedUp('c'));
  now_ms = 20_000;
  await endWindows();
  assert.deepEqual(await first.count('c'), { is_over: true, left: 0, ends_in_ms: ends_in_ms - 20_000 });
  now_ms = ends_in_ms;
  assert.equal(first.isUsedUp('c'), false);
  assert.equal((await second.count('c')).is_over, false, 'a new window');
  assert.equal((await first.count('c')).is_over, true);
});

test('the sweep removes ended windows', async () => {
  await limit(1).count('old');
  await endWindows();
  await limit(1).count('new');
  await deleteEndedWindows(db);
  const { rows } = await sql<{ key: string }>`select key from request_counts`.execute(db);
  assert.deepEqual(rows, [{ key: 'test:new' }]);
});
