/** Pending deliveries: what callers see of them, and that each is sent once. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { dispatchEvents } from '../../src/control-plane/events/append.ts';
import { fanOutToWebhooks } from '../../src/control-plane/webhooks/fan-out.ts';
import {
  countPendingDeliveries,
  insertDeliveries,
  pruneDeliveries,
} from '../../src/control-plane/webhooks/store.ts';
import { type EventId, newId, type WebhookId } from '../../src/shared/ids.ts';
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

const rowsOf = (id: string) =>
  db
    .selectFrom('webhook_deliveries')
    .select(['id', 'state', 'position'])
    .where('webhook_id', '=', id as WebhookId)
    .orderBy('position')
    .execute();

/** A webhook with so many pending deliveries, and no sender. */
async function pending(count: number) {
  const owner = await api.person();
  const recorder = await startRecorder();
  const webhook = await makeWebhook(api, owner, recorder.url);
  for (let n = 1; n <= count; n++) await happen(api, owner.org_id, n);
  await dispatchEvents(db, [fanOutToWebhooks]);
  return { owner, recorder, webhook, id: webhook.id as WebhookId };
}

/** Sends as a new process does, until the webhook has nothing pending. */
async function sendAll(id: WebhookId): Promise<void> {
  const senders = sendWebhooks(api);
  try {
    const isPending = async () => (await rowsOf(id)).some(({ state }) => state === 'pending');
    await until('nothing is pending', async () => !(await isPending()));
  } finally {
    await senders.stop();
  }
}

const identity = ({ id, event_id, created_at }: DeliveryOut & { created_at?: string }) => ({
  id,
  event_id,
  created_at,
});

async function redeliver(owner: Person, webhook_id: string, id: string): Promise<void> {
  const path = `/v1/webhooks/${webhook_id}/deliveries/${id}/redeliver`;
  const answer = await api.as(owner).post<DeliveryOut>(path, {});
  assert.equal(answer.status, 202, answer.text);
  assert.equal(answer.body.id, id);
}

test('a delivery is listed as pending before its first attempt, and keeps its id and its time', async () => {
  const { owner, recorder, webhook, id } = await pending(3);
  const before = await deliveriesOf(api, owner, webhook);
  assert.deepEqual(
    before.map(({ status, attempt_count, attempts }) => ({ status, attempt_count, attempts })),
    Array.from({ length: 3 }, () => ({ status: 'pending', attempt_count: 0, attempts: [] })),
  );
  assert.ok(before.every(({ next_attempt_at }) => next_attempt_at !== null));
  await sendAll(id);
  const after = await deliveriesOf(api, owner, webhook);
  assert.ok(after.every(({ status }) => status === 'delivered'));
  assert.deepEqual(after.map(identity), before.map(identity));
  assert.deepEqual(
    recorder.got.map((got) => got.id),
    before.map(({ event_id }) => event_id).reverse(),
  );
});

test('pages and filters', async () => {
  const { owner, webhook, id } = await pending(6);
  const all = await deliveriesOf(api, owner, webhook);
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

test('a pending delivery that is redelivered is sent once', async () => {
  const { owner, recorder, webhook, id } = await pending(3);
  const [, middle] = await deliveriesOf(api, owner, webhook);
  await redeliver(owner, id, middle?.id ?? '');
  await sendAll(id);
  assert.equal(recorder.got.length, 3);
  assert.equal(new Set(recorder.got.map((got) => got.id)).size, 3);
});

test('a replay sends pending deliveries once, with the ids that were listed', async () => {
  const { owner, recorder, webhook, id } = await pending(4);
  const before = await deliveriesOf(api, owner, webhook);
  const since = new Date(Date.now() - 60_000).toISOString();
  const { status, body } = await api
    .as(owner)
    .post<{ count: number }>(`/v1/webhooks/${id}/replay`, { since });
  assert.deepEqual({ status, body }, { status: 202, body: { count: 4 } });
  await sendAll(id);
  assert.deepEqual((await deliveriesOf(api, owner, webhook)).map(identity), before.map(identity));
  assert.equal(recorder.got.length, 4);
});

test('a disabling fails pending deliveries', async () => {
  const { owner, webhook, id } = await pending(3);
  const before = await deliveriesOf(api, owner, webhook);
  assert.equal((await api.as(owner).patch(`/v1/webhooks/${id}`, { status: 'disabled' })).status, 200);
  const after = await deliveriesOf(api, owner, webhook);
  assert.deepEqual(after.map(identity), before.map(identity));
  assert.ok(after.every(({ status }) => status === 'failed'));
});

test('after the death of a process that had sent some of them, the rest is sent', async () => {
  const { owner, recorder, webhook, id } = await pending(4);
  const [newest, , , oldest] = await deliveriesOf(api, owner, webhook);
  await db
    .updateTable('webhook_deliveries')
    .set({ state: 'delivered', next_attempt_at: null })
    .where('event_id', 'in', [newest?.event_id, oldest?.event_id] as EventId[])
    .execute();
  await sendAll(id);
  assert.deepEqual(
    recorder.got.map((got) => got.event.data['n']),
    [2, 3],
  );
});

test('more deliveries than one statement takes are inserted whole', async () => {
  const webhooks = [newId('wh'), newId('wh'), newId('wh')];
  const deliveries = webhooks.flatMap((webhook_id) =>
    Array.from({ length: 4_000 }, (_, n) => ({
      webhook_id,
      event_id: newId('evt'),
      position: 1_000_000 + n,
      instance_id: null,
    })),
  );
  await transaction(db, (tx) => insertDeliveries(tx, deliveries));
  for (const id of webhooks) {
    const rows = await rowsOf(id);
    assert.equal(new Set(rows.map((row) => row.id)).size, 4_000);
    assert.equal(rows.at(-1)?.position, 1_003_999);
  }
  await db.deleteFrom('webhook_deliveries').where('webhook_id', 'in', webhooks).execute();
});

test('first attempts and retries count as pending', async () => {
  const before = await countPendingDeliveries(db);
  const { owner, webhook, id } = await pending(3);
  assert.equal(await countPendingDeliveries(db), before + 3);
  const [newest] = await deliveriesOf(api, owner, webhook);
  await redeliver(owner, id, newest?.id ?? '');
  assert.equal(await countPendingDeliveries(db), before + 3);
});

test('the outcome of a delivery whose webhook was swept meanwhile leaves no row', async () => {
  const { owner, recorder, id } = await pending(1);
  const release = recorder.hold();
  const senders = sendWebhooks(api);
  await until('it is in flight', () => recorder.got.length === 1);
  const [row] = await rowsOf(id);
  await api.as(owner).delete(`/v1/webhooks/${id}`);
  await pruneDeliveries(db);
  release();
  await senders.stop();
  assert.deepEqual(await rowsOf(id), []);
  const attempts = db.selectFrom('webhook_attempts').select('number');
  assert.deepEqual(await attempts.where('delivery_id', '=', row?.id ?? newId('whd')).execute(), []);
});
