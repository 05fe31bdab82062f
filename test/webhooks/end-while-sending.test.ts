/** A webhook that is deleted, disabled or changed during a backlog: only requests in flight still reach the old receiver. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { append } from '../../src/control-plane/events/append.ts';
import { DeliveryQueue } from '../../src/control-plane/webhooks/delivery-queue.ts';
import { PARALLEL, Sender } from '../../src/control-plane/webhooks/sender.ts';
import { apiForFile } from '../support/api.ts';
import { queryOnce } from '../support/database.ts';
import type { Person } from '../support/people.ts';
import { until } from '../support/waiting.ts';
import {
  deliveriesOf,
  happen,
  makeProvenWebhook,
  sendWebhooks,
  startRecorder,
  untilRetried,
  type WebhookOut,
} from '../support/webhooks.ts';

/** More than a sender claims at once. */
const EVENTS = 400;
/** To one receiver at a time. */
const IN_FLIGHT = PARALLEL.in_order;

const api = await apiForFile();
sendWebhooks(api);

async function muchHappens({ org_id }: Person): Promise<void> {
  await transaction(api.db, async (tx) => {
    for (let n = 1; n <= EVENTS; n++)
      await append(tx, { org_id, type: 'member.added', data: { n }, actor: 'system' });
  });
}

async function leaseIsReleased(id: string): Promise<void> {
  const leases = () => queryOnce(api.database.url, 'select from webhook_leases where webhook_id = $1', [id]);
  await until('the lease is released', async () => (await leases()).length === 0);
}

const ENDS: Readonly<Record<string, (who: Person, path: string) => Promise<{ status: number }>>> = {
  deleted: (who, path) => api.as(who).delete(path),
  disabled: (who, path) => api.as(who).patch(path, { status: 'disabled' }),
};

for (const [what, end] of Object.entries(ENDS)) {
  test(`a webhook that is ${what} gets no further request`, async (t) => {
    const ended = t.mock.method(Sender.prototype, 'end');
    const owner = await api.person();
    const recorder = await startRecorder();
    const { id } = await makeProvenWebhook(api, owner, recorder.url);
    const release = recorder.hold();
    await muchHappens(owner);
    await recorder.has(IN_FLIGHT);
    assert.ok([200, 204].includes((await end(owner, `/v1/webhooks/${id}`)).status));
    await until('its sender knows', () => ended.mock.calls.some((call) => call.arguments[0] === 'disabled'));
    release();
    await leaseIsReleased(id);
    assert.equal(recorder.got.length, IN_FLIGHT);
  });
}

test('a receiver that answers 410 gets no further request', async () => {
  const owner = await api.person();
  const recorder = await startRecorder();
  const { id } = await makeProvenWebhook(api, owner, recorder.url);
  recorder.reply = () => ({ status: 410 });
  await muchHappens(owner);
  await until('it is disabled', async () => {
    const text = "select from webhooks where id = $1 and status = 'disabled'";
    return (await queryOnce(api.database.url, text, [id])).length > 0;
  });
  await leaseIsReleased(id);
  assert.ok(recorder.got.length <= IN_FLIGHT, `${recorder.got.length} requests`);
});

test('claimed deliveries go to the new address', async (t) => {
  const claimed = t.mock.method(DeliveryQueue.prototype, 'add');
  const owner = await api.person();
  const [before, after] = [await startRecorder(), await startRecorder()];
  const { id } = await makeProvenWebhook(api, owner, before.url);
  const release = before.hold();
  claimed.mock.resetCalls();
  await muchHappens(owner);
  await before.has(IN_FLIGHT);
  assert.equal((await api.as(owner).patch(`/v1/webhooks/${id}`, { url: after.url })).status, 200);
  // A page that follows another does not begin with the first delivery.
  const ids = () => claimed.mock.calls.map(({ arguments: [delivery] }) => delivery.id);
  await until('its sender reads the webhook and its deliveries again', () => ids().lastIndexOf(ids()[0]) > 0);
  release();
  await after.has(EVENTS - IN_FLIGHT);
  assert.equal(before.got.length, IN_FLIGHT);
});

for (const knows of [true, false]) {
  test(`a 410 of the old address does not disable the webhook; its sender knows the new one: ${knows}`, async (t) => {
    const { reload } = Sender.prototype;
    const told = t.mock.method(Sender.prototype, 'reload', function hear(this: Sender) {
      if (knows) reload.call(this);
    });
    const owner = await api.person();
    const [before, after] = [await startRecorder(), await startRecorder()];
    const webhook = await makeProvenWebhook(api, owner, before.url);
    const { promise: released, resolve: release } = Promise.withResolvers<void>();
    before.reply = async () => {
      await released;
      return { status: 410 };
    };
    await happen(api, owner.org_id, 1);
    await before.has(1);
    const path = `/v1/webhooks/${webhook.id}`;
    assert.equal((await api.as(owner).patch(path, { url: after.url })).status, 200);
    await until('its sender is notified', () => told.mock.callCount() > 0);
    release();
    await until(
      'it is recorded',
      async () => (await deliveriesOf(api, owner, webhook))[0]?.attempt_count === 1,
    );
    assert.equal((await api.as(owner).get<WebhookOut>(path)).body.status, 'enabled');
    await untilRetried(api, webhook, after, 1, 1);
    await until(
      'it is delivered',
      async () => (await deliveriesOf(api, owner, webhook))[0]?.status === 'delivered',
    );
  });
}
