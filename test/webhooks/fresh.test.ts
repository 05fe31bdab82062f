/** Deliveries that were not tried yet have no rows of their own: what callers see of them, and when their batch goes. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { transaction } from '../../src/db/pool.ts';
import type { WebhookId } from '../../src/lib/ids.ts';
import { dispatchEvents } from '../../src/tasks/dispatch-events.ts';
import { reviveForgotten } from '../../src/webhooks/deliveries.ts';
import { countPendingDeliveries } from '../../src/webhooks/delivery-store.ts';
import { listFresh } from '../../src/webhooks/drain-store.ts';
import { fanOutToWebhooks } from '../../src/webhooks/fan-out.ts';
import { clearBatches, insertBatches } from '../../src/webhooks/fresh-store.ts';
import { pruneDeliveries } from '../../src/webhooks/prune-store.ts';
import { apiForFile } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import type { Person } from '../support/people.ts';
import { until } from '../support/waiting.ts';
import {
  type DeliveryOut,
  deliveriesOf,
  happen,
  makeWebhook,
  sendWebhooks,
  startRecorder,
} from '../support/webhooks.ts';

const api = await apiForFile();
const { db } = api;

const dispatch = () => dispatchEvents(db, [fanOutToWebhooks]);
const batchesOf = (id: string) =>
  db
    .selectFrom('webhook_batches')
    .select(['position', 'size'])
    .where('webhook_id', '=', id as WebhookId)
    .orderBy('position')
    .execute();
const rowsOf = (id: string) =>
  db
    .selectFrom('webhook_deliveries')
    .select(['id', 'state', 'position'])
    .where('webhook_id', '=', id as WebhookId)
    .orderBy('position')
    .execute();

/** A webhook with a batch for each number of events, of a minute ago, and nobody who sends them. */
async function waiting(...sizes: readonly number[]) {
  const owner = await api.person();
  const recorder = await startRecorder();
  const webhook = await makeWebhook(api, owner, recorder.url);
  let n = 0;
  for (const size of sizes) {
    for (let made = 0; made < size; made++) await happen(api, owner.org_id, ++n);
    await dispatch();
  }
  await sql`update webhook_batches set created_at = created_at - interval '1 minute'`.execute(db);
  assert.deepEqual(
    (await batchesOf(webhook.id)).map(({ size }) => size),
    sizes,
  );
  return { owner, recorder, webhook, id: webhook.id as WebhookId };
}

/** Sends what waits, found as it is after the death of whoever was to send it, until `done`. */
async function sendUntil(what: string, done: () => Promise<boolean>): Promise<void> {
  const senders = sendWebhooks(api);
  try {
    await reviveForgotten(db);
    await until(what, done);
  } finally {
    await senders.stop();
  }
}

const cleared = (id: string) => async () => (await batchesOf(id)).length === 0;
const told = ({ id, event_id, created_at }: DeliveryOut & { created_at?: string }) => ({
  id,
  event_id,
  created_at,
});

test('what is fresh is shown as pending, and keeps its id and its time', async () => {
  const { owner, recorder, webhook } = await waiting(2, 1);
  const before = await deliveriesOf(api, owner, webhook);
  assert.deepEqual(
    before.map(({ status, attempt_count, attempts }) => ({ status, attempt_count, attempts })),
    Array.from({ length: 3 }, () => ({ status: 'pending', attempt_count: 0, attempts: [] })),
  );
  assert.ok(before.every(({ next_attempt_at }) => next_attempt_at !== null));
  assert.deepEqual(await rowsOf(webhook.id), []);
  await sendUntil('all are delivered, and no batch is left', cleared(webhook.id));
  const after = await deliveriesOf(api, owner, webhook);
  assert.ok(after.every(({ status }) => status === 'delivered'));
  assert.deepEqual(after.map(told), before.map(told));
  assert.deepEqual(
    recorder.got.map(({ id }) => id),
    before.map(({ event_id }) => event_id).reverse(),
  );
});

test('pages and filters go over what has rows and what is fresh', async () => {
  const { owner, webhook, id } = await waiting(3, 3);
  const all = await deliveriesOf(api, owner, webhook);
  assert.equal(all.length, 6);
  // The second and the fifth get rows.
  for (const nth of [1, 4]) await redeliver(owner, id, all[nth]?.id ?? '');
  const seen: string[] = [];
  let cursor: string | null = '';
  while (cursor !== null) {
    const query: string = `limit=2${cursor === '' ? '' : `&cursor=${cursor}`}`;
    const { body }: { body: Page<DeliveryOut> } = await api
      .as(owner)
      .get<Page<DeliveryOut>>(`/v1/webhooks/${id}/deliveries?${query}`);
    seen.push(...body.data.map((each) => each.id));
    cursor = body.next_cursor;
  }
  assert.deepEqual(
    seen,
    all.map((each) => each.id),
  );
  const counts = [];
  for (const status of ['pending', 'delivered', 'failed']) {
    const { body } = await api
      .as(owner)
      .get<Page<DeliveryOut>>(`/v1/webhooks/${id}/deliveries?status=${status}`);
    counts.push(body.data.length);
  }
  assert.deepEqual(counts, [6, 0, 0]);
});

async function redeliver(owner: Person, webhook_id: string, id: string): Promise<void> {
  const path = `/v1/webhooks/${webhook_id}/deliveries/${id}/redeliver`;
  const answer = await api.as(owner).post<DeliveryOut>(path, {});
  assert.equal(answer.status, 202, answer.text);
  assert.equal(answer.body.id, id);
}

test('one that was asked for again is sent once', async () => {
  const { owner, recorder, webhook, id } = await waiting(3);
  const [, middle] = await deliveriesOf(api, owner, webhook);
  await redeliver(owner, id, middle?.id ?? '');
  await sendUntil('no batch is left', cleared(id));
  assert.equal(recorder.got.length, 3);
  assert.equal(new Set(recorder.got.map((got) => got.id)).size, 3);
});

test('a replay sends what is fresh once, with the ids that were shown', async () => {
  const { owner, recorder, webhook, id } = await waiting(2, 2);
  const before = await deliveriesOf(api, owner, webhook);
  const since = new Date(Date.now() - 60_000).toISOString();
  const { status, body } = await api
    .as(owner)
    .post<{ count: number }>(`/v1/webhooks/${id}/replay`, { since });
  assert.deepEqual({ status, body }, { status: 202, body: { count: 4 } });
  await sendUntil('no batch is left', cleared(id));
  await until('all are delivered', async () =>
    (await deliveriesOf(api, owner, webhook)).every((each) => each.status === 'delivered'),
  );
  assert.deepEqual((await deliveriesOf(api, owner, webhook)).map(told), before.map(told));
  assert.equal(recorder.got.length, 4);
});

test('a disabling fails what is fresh', async () => {
  const { owner, webhook, id } = await waiting(2, 1);
  const before = await deliveriesOf(api, owner, webhook);
  assert.equal((await api.as(owner).patch(`/v1/webhooks/${id}`, { status: 'disabled' })).status, 200);
  assert.deepEqual(await batchesOf(id), []);
  const after = await deliveriesOf(api, owner, webhook);
  assert.deepEqual(after.map(told), before.map(told));
  assert.ok(after.every(({ status }) => status === 'failed'));
});

test('of a batch that was sent in part, as by a process that died, the rest is sent', async () => {
  const { owner, recorder, webhook, id } = await waiting(4);
  const [newest, , , oldest] = await deliveriesOf(api, owner, webhook);
  for (const each of [newest, oldest]) {
    await redeliver(owner, id, each?.id ?? '');
    await db
      .updateTable('webhook_deliveries')
      .set({ state: 'delivered', next_attempt_at: null })
      .where('event_id', '=', each?.event_id as never)
      .execute();
  }
  await sendUntil('no batch is left', cleared(id));
  assert.deepEqual(
    recorder.got.map((got) => got.event.data['n']),
    [2, 3],
  );
});

test('a batch that came back, all sent, is cleared and not sent again', async () => {
  const { recorder, id } = await waiting(3);
  const before = await db.selectFrom('webhook_batches').selectAll().where('webhook_id', '=', id).execute();
  await sendUntil('no batch is left', cleared(id));
  const rows = await rowsOf(id);
  // As after the death of the database: whose deletion was not on its disk.
  await db.insertInto('webhook_batches').values(before).execute();
  await sendUntil('no batch is left again', cleared(id));
  assert.equal(recorder.got.length, 3);
  assert.deepEqual(await rowsOf(id), rows);
});

test('a batch is not cleared while something of it is fresh', async () => {
  const { owner, webhook, id } = await waiting(2, 2);
  const [newest] = await deliveriesOf(api, owner, webhook);
  const batches = await batchesOf(id);
  await redeliver(owner, id, newest?.id ?? '');
  await clearBatches(db, id, Number.MAX_SAFE_INTEGER);
  assert.deepEqual(await batchesOf(id), batches);
});

test('a reader gets as much as it asks for, and learns how far it has read', async () => {
  const { id } = await waiting(2, 3, 1);
  const [first, second, third] = (await batchesOf(id)).map(({ position }) => position);
  const read = async (after: number, limit: number) => {
    const { due, ...rest } = await listFresh(db, id, after, limit);
    return { positions: due.map(({ position }) => position), ...rest };
  };
  const { positions, ...whole } = await read(0, 100);
  assert.equal(positions.length, 6);
  assert.deepEqual(whole, { read_to: third, more: false });
  // Within the second batch, and on from there.
  assert.deepEqual(await read(0, 3), {
    positions: positions.slice(0, 3),
    read_to: positions[2],
    more: true,
  });
  assert.deepEqual(await read(positions[2] ?? 0, 100), {
    positions: positions.slice(3),
    read_to: third,
    more: false,
  });
  // A batch of which nothing is fresh was looked at, too.
  await sql`
    insert into webhook_deliveries (id, webhook_id, event_id, position, state)
    select 'whd_' || p, ${id}, 'evt', p, 'delivered' from webhook_batches b, unnest(b.positions) as p
    where b.webhook_id = ${id} and b.position <= ${second}`.execute(db);
  assert.deepEqual(await read(0, 1), { positions: [], read_to: first, more: true });
  assert.deepEqual(await read(third ?? 0, 5), { positions: [], read_to: null, more: false });
});

test('batches of many webhooks at once, and of many events, are written whole', async () => {
  const webhooks = ['wh_a', 'wh_b', 'wh_c'] as WebhookId[];
  const positions = Array.from({ length: 6_000 }, (_, n) => 1_000_000 + n);
  await transaction(db, (tx) =>
    insertBatches(
      tx,
      webhooks.map((webhook_id) => ({ webhook_id, positions })),
    ),
  );
  for (const id of webhooks) {
    const { rows } = await sql<{ whole: boolean }>`
      select positions = ${positions}::bigint[] and size = 6000 and position = ${positions.at(-1)}
        and cardinality(ids) = size and (select count(distinct i) from unnest(ids) as i) = size as whole
      from webhook_batches where webhook_id = ${id}`.execute(db);
    assert.deepEqual(rows, [{ whole: true }]);
  }
  await db.deleteFrom('webhook_batches').where('webhook_id', 'in', webhooks).execute();
});

test('what is fresh counts as pending', async () => {
  const before = await countPendingDeliveries(db);
  const { owner, webhook, id } = await waiting(3);
  assert.equal(await countPendingDeliveries(db), before + 3);
  const [newest] = await deliveriesOf(api, owner, webhook);
  await redeliver(owner, id, newest?.id ?? '');
  assert.equal(await countPendingDeliveries(db), before + 3);
});

test('batches go with their webhook, and when their events are gone', async () => {
  const [deleted, old, kept] = [await waiting(2), await waiting(2), await waiting(2)];
  await api.as(deleted.owner).delete(`/v1/webhooks/${deleted.id}`);
  await db
    .updateTable('webhook_batches')
    .set({ created_at: new Date(Date.now() - 31 * 86_400_000) })
    .where('webhook_id', '=', old.id)
    .execute();
  await pruneDeliveries(db);
  assert.deepEqual(await batchesOf(deleted.id), []);
  assert.deepEqual(await batchesOf(old.id), []);
  assert.equal((await batchesOf(kept.id)).length, 1);
});

test('what becomes of a delivery whose webhook was removed meanwhile leaves no row', async () => {
  const { owner, recorder, id } = await waiting(1);
  const release = recorder.hold();
  const senders = sendWebhooks(api);
  await reviveForgotten(db);
  await until('it is under way', () => recorder.got.length === 1);
  await api.as(owner).delete(`/v1/webhooks/${id}`);
  await pruneDeliveries(db);
  release();
  await senders.stop();
  assert.deepEqual(await rowsOf(id), []);
});
