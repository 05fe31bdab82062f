/** A URL that has never answered 2xx gets few requests, until it does. */
import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import { SharedLimit } from '../../src/control-plane/db/shared-limit.ts';
import { UNPROVEN_REQUESTS } from '../../src/control-plane/webhooks/senders.ts';
import { listDueWebhooks } from '../../src/control-plane/webhooks/store.ts';
import { apiForFile } from '../support/api.ts';
import type { Person } from '../support/people.ts';
import { until } from '../support/waiting.ts';
import {
  happen,
  makeWebhook,
  type Recorder,
  sendWebhooks,
  startRecorder,
  type WebhookOut,
  webhookWhen,
} from '../support/webhooks.ts';

const api = await apiForFile();
sendWebhooks(api);
const { db } = api;
const EVENTS = UNPROVEN_REQUESTS + 50;
/** No retry while the test runs. */
const LATER = { status: 503, headers: { 'retry-after': '3600' } } as const;
const SINCE = { since: new Date(Date.now() - 60_000).toISOString() };

/** Somebody whose organisation has so many events, from before its first webhook. */
async function withEvents(): Promise<Person> {
  const owner = await api.person();
  for (let n = 0; n < EVENTS; n++) await happen(api, owner.org_id, n);
  await until('all events are dispatched', async () => {
    const waiting = await db.selectFrom('events').select('id').where('position', 'is', null).execute();
    return waiting.length === 0;
  });
  return owner;
}

async function stranger(): Promise<Recorder> {
  const recorder = await startRecorder();
  recorder.reply = () => LATER;
  return recorder;
}

async function replay(owner: Person, { id }: { readonly id: string }): Promise<void> {
  const answer = await api.as(owner).post<{ count: number }>(`/v1/webhooks/${id}/replay`, SINCE);
  assert.equal(answer.status, 202, answer.text);
  assert.ok(answer.body.count >= EVENTS, answer.text);
}

const isUsedUp = mock.method(SharedLimit.prototype, 'isUsedUp');

/** Its sender has ended at the limit, and polls start no other. */
async function isHeldBack({ org_id }: Person, { id }: { readonly id: string }): Promise<void> {
  const hasNoSender = async () => (await listDueWebhooks(db)).some((each) => each.id === id);
  await until('it is due, without a sender', hasNoSender);
  isUsedUp.mock.resetCalls();
  const refused = () => isUsedUp.mock.calls.filter(({ arguments: [of], result }) => of === org_id && result);
  await until('three polls have left it out', () => refused().length >= 3);
  await until('no sender is left', hasNoSender);
}

test('a replay sends 100 requests to a URL that answers no 2xx; neither another replay nor a new webhook sends 100 more', async () => {
  const owner = await withEvents();
  const receiver = await stranger();
  const first = await makeWebhook(api, owner, receiver.url);
  await replay(owner, first);
  await isHeldBack(owner, first);
  assert.equal(receiver.got.length, UNPROVEN_REQUESTS);

  await replay(owner, first);
  await api.as(owner).patch(`/v1/webhooks/${first.id}`, { status: 'disabled' });
  await api.as(owner).patch(`/v1/webhooks/${first.id}`, { status: 'enabled' });
  await replay(owner, first);
  await isHeldBack(owner, first);
  assert.equal(receiver.got.length, UNPROVEN_REQUESTS);

  await api.as(owner).delete(`/v1/webhooks/${first.id}`);
  const second = await makeWebhook(api, owner, receiver.url);
  await replay(owner, second);
  await isHeldBack(owner, second);
  assert.equal(receiver.got.length, UNPROVEN_REQUESTS);
});

test('organisations do not share the limit', async () => {
  const receiver = await stranger();
  for (const times of [1, 2]) {
    const owner = await withEvents();
    const webhook = await makeWebhook(api, owner, receiver.url);
    await replay(owner, webhook);
    await isHeldBack(owner, webhook);
    assert.equal(receiver.got.length, times * UNPROVEN_REQUESTS);
  }
});

test('one 2xx ends the limit, beside a webhook that stays limited, and later failures do not bring it back', async () => {
  const owner = await withEvents();
  const [dead, good] = [await stranger(), await startRecorder()];
  const webhook = await makeWebhook(api, owner, good.url);
  assert.equal(webhook.proven_at, null);
  await replay(owner, webhook);
  await good.has(EVENTS);
  await webhookWhen(api, owner, webhook, 'it is proven', (each) => each.proven_at !== null);

  const failing = await makeWebhook(api, owner, dead.url);
  await replay(owner, failing);
  await isHeldBack(owner, failing);
  await replay(owner, webhook);
  await good.has(2 * EVENTS);
  good.reply = () => LATER;
  await replay(owner, webhook);
  await good.has(3 * EVENTS);
});

test('another URL is unproven; setting the same URL keeps it proven', async () => {
  const owner = await api.person();
  const [good, other] = [await startRecorder(), await startRecorder()];
  const webhook = await makeWebhook(api, owner, good.url);
  await api.as(owner).post(`/v1/webhooks/${webhook.id}/ping`);
  const { proven_at } = await webhookWhen(
    api,
    owner,
    webhook,
    'it is proven',
    (each) => each.proven_at !== null,
  );
  const change = async (url: string) =>
    (await api.as(owner).patch<WebhookOut>(`/v1/webhooks/${webhook.id}`, { url })).body.proven_at;
  assert.equal(await change(good.url), proven_at);
  assert.equal(await change(other.url), null);
  await api.as(owner).post(`/v1/webhooks/${webhook.id}/ping`);
  await webhookWhen(api, owner, webhook, 'it is proven again', (each) => each.proven_at !== null);
});
