/** How many requests to unproven URLs are allowed, over all control planes. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { UNPROVEN_REQUESTS, UnprovenRequests } from '../../src/control-plane/webhooks/unproven.ts';
import { newId, type OrgId } from '../../src/shared/ids.ts';
import { startDatabase } from '../support/database.ts';

const { db, close } = await startDatabase();
after(close);

async function taken(requests: UnprovenRequests, org: OrgId, of: number): Promise<number> {
  const webhook = newId('wh');
  let count = 0;
  for (let n = 0; n < of; n++) if (await requests.take(org, webhook)) count += 1;
  return count;
}

test('an organisation has 100 requests in ten minutes, and a hundred more in the next', async () => {
  const org = newId('org');
  assert.equal(await taken(new UnprovenRequests(db), org, 150), UNPROVEN_REQUESTS);
  await sql`update request_counts set expire = expire - 600000`.execute(db);
  assert.equal(await taken(new UnprovenRequests(db), org, 150), UNPROVEN_REQUESTS);
});

test('all its webhooks share them, at all control planes; beyond these each may send one', async () => {
  const [first, second] = [new UnprovenRequests(db), new UnprovenRequests(db)];
  const org = newId('org');
  assert.equal(await taken(first, org, 60), 60);
  assert.equal(await taken(second, org, 60), 40);
  for (const requests of [first, second, first]) assert.equal(await taken(requests, org, 10), 1);
});

test('organisations do not share them', async () => {
  const requests = new UnprovenRequests(db);
  for (let made = 0; made < 3; made++)
    assert.equal(await taken(requests, newId('org'), UNPROVEN_REQUESTS + 1), UNPROVEN_REQUESTS);
});

test('a used-up webhook is known as such where it was refused, beside one that may send its one request', async () => {
  const requests = new UnprovenRequests(db);
  const [org, webhook, other] = [newId('org'), newId('wh'), newId('wh')];
  for (let n = 0; n < UNPROVEN_REQUESTS; n++) await requests.take(org, webhook);
  assert.deepEqual([requests.isExhausted(org, webhook), requests.isExhausted(org, other)], [true, false]);
});

test('webhooks that are made one after the other have no more than 100 requests beyond the shared ones', async () => {
  const requests = new UnprovenRequests(db);
  const org = newId('org');
  let sent = 0;
  for (let made = 0; made < 3 * UNPROVEN_REQUESTS; made++)
    if (await requests.take(org, newId('wh'))) sent += 1;
  assert.equal(sent, 2 * UNPROVEN_REQUESTS);
  assert.ok(requests.isExhausted(org, newId('wh')));
});
