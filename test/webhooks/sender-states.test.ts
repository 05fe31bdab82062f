/** The states of a sender. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { SharedLimit } from '../../src/control-plane/db/shared-limit.ts';
import { dispatchEvents } from '../../src/control-plane/events/append.ts';
import { fanOutToWebhooks } from '../../src/control-plane/webhooks/fan-out.ts';
import { PARALLEL, Sender } from '../../src/control-plane/webhooks/sender.ts';
import { takeLease } from '../../src/control-plane/webhooks/store.ts';
import type { WebhookId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { until } from '../support/waiting.ts';
import { deliveriesOf, happen, makeProvenWebhook, startRecorder } from '../support/webhooks.ts';

const api = await apiForFile();
const { db } = api;
const EVENTS = 40;

async function pendingWebhook() {
  const owner = await api.person();
  const recorder = await startRecorder();
  const webhook = await makeProvenWebhook(api, owner, recorder.url);
  for (let n = 1; n <= EVENTS; n++) await happen(api, owner.org_id, n);
  await dispatchEvents(db, [fanOutToWebhooks]);
  const parts = {
    ...{ db, ...api.context.webhooks, owner: 'this process', lease_s: 15 },
    ...{
      give_up: new AbortController().signal,
      unproven: new SharedLimit(db, { name: 'unproven', most: 100, window_s: 600 }),
    },
  };
  const id = webhook.id as WebhookId;
  return { owner, recorder, webhook, id, sender: new Sender(id, false, parts, () => undefined) };
}

test('starting, sending, released: all pending deliveries are sent, and the lease is free', async () => {
  const { recorder, id, sender } = await pendingWebhook();
  assert.equal(sender.state, 'starting');
  const release = recorder.hold();
  const running = sender.run();
  await until('it sends', () => sender.state === 'sending' && recorder.got.length > 0);
  release();
  await running;
  assert.equal(sender.state, 'released');
  assert.equal(recorder.got.length, EVENTS);
  assert.ok(await takeLease(db, id, 'another process', 15));
});

test('a lease that is held elsewhere: released, without a request', async () => {
  const { recorder, id, sender } = await pendingWebhook();
  assert.ok(await takeLease(db, id, 'another process', 15));
  await sender.run();
  assert.equal(sender.state, 'released');
  assert.deepEqual(recorder.got, []);
});

test('draining: requests in flight are recorded, the other deliveries stay pending', async () => {
  const { owner, recorder, webhook, sender } = await pendingWebhook();
  const release = recorder.hold();
  const running = sender.run();
  const in_flight = PARALLEL.in_order;
  await until('it sends', () => recorder.got.length === in_flight);
  sender.end('stopped');
  await until('it drains', () => sender.state === 'draining');
  release();
  await running;
  const states = Map.groupBy(await deliveriesOf(api, owner, webhook), ({ status }) => status);
  assert.equal(states.get('delivered')?.length, in_flight);
  assert.equal(states.get('pending')?.length, EVENTS - in_flight);
});
