/** Receivers that answer 410, or nothing but failures for days. Tests move the clock by writing to the database. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { numberEvents } from '../../src/control-plane/events/store.ts';
import { fanOutToWebhooks } from '../../src/control-plane/webhooks/fan-out.ts';
import { present } from '../../src/shared/assert.ts';
import { newId, type OrgId, type WebhookId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { until } from '../support/waiting.ts';
import {
  deliveriesOf,
  happen,
  makeWebhook,
  sendWebhooks,
  startRecorder,
  untilRetried,
  webhookWhen,
} from '../support/webhooks.ts';

const api = await apiForFile();
sendWebhooks(api);
const HOUR_MS = 3_600_000;

const eventsOf = (org_id: OrgId, type: string) =>
  api.db
    .selectFrom('events')
    .select(['data', 'actor', 'user_id'])
    .where('org_id', '=', org_id)
    .where('type', '=', type)
    .execute();

/** As if it had been failing for so long. */
async function failingFor(id: WebhookId, ms: number): Promise<void> {
  await api.db
    .updateTable('webhooks')
    .set({ failing_since: new Date(Date.now() - ms) })
    .where('id', '=', id)
    .execute();
}

describe('410', () => {
  test('disables at once, fails pending deliveries, and other webhooks get the event', async () => {
    const owner = await api.person();
    const [gone, other] = [await startRecorder(), await startRecorder()];
    const webhook = await makeWebhook(api, owner, gone.url);
    await makeWebhook(api, owner, other.url, { events: ['webhook.disabled'] });
    const later = { status: 503, headers: { 'retry-after': '3600' } };
    gone.reply = (_, nth) => (nth === 1 ? later : { status: 410 });
    await happen(api, owner.org_id, 1);
    await gone.has(1);
    await until('that is recorded', async () => {
      const [delivery] = await deliveriesOf(api, owner, webhook);
      return delivery?.attempt_count === 1;
    });
    await happen(api, owner.org_id, 2);
    const after = await webhookWhen(api, owner, webhook, 'disabled', ({ status }) => status === 'disabled');
    assert.equal(after.disabled_reason, 'gone');
    assert.ok(after.disabled_at);
    const [told] = await other.has(1);
    assert.equal(told?.event.type, 'webhook.disabled');
    assert.equal((told?.event.data['webhook'] as { id: string } | undefined)?.id, webhook.id);
    const deliveries = await deliveriesOf(api, owner, webhook);
    assert.deepEqual(
      deliveries.map(({ status, attempt_count }) => ({ status, attempt_count })),
      [
        { status: 'failed', attempt_count: 1 },
        { status: 'failed', attempt_count: 1 },
      ],
    );
    await happen(api, owner.org_id, 3);
    await other.has(1);
    assert.equal((await eventsOf(owner.org_id, 'webhook.disabled')).length, 1);
  });
});

describe('nothing but failure', () => {
  test('for five days disables, for less it does not', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    receiver.reply = () => ({ status: 500 });
    await happen(api, owner.org_id, 1);
    await webhookWhen(api, owner, webhook, 'failing', ({ failing_since }) => failing_since !== null);
    await failingFor(webhook.id, 5 * 24 * HOUR_MS - 60_000);
    await untilRetried(api, webhook, receiver, 1, 2);
    await until('it is recorded', async () => {
      const [delivery] = await deliveriesOf(api, owner, webhook);
      return delivery?.attempt_count === 2;
    });
    assert.deepEqual(await eventsOf(owner.org_id, 'webhook.disabled'), []);
    await failingFor(webhook.id, 5 * 24 * HOUR_MS + 1_000);
    await untilRetried(api, webhook, receiver, 2, 3);
    const after = await webhookWhen(api, owner, webhook, 'disabled', ({ status }) => status === 'disabled');
    assert.equal(after.disabled_reason, 'failing');
    const [event] = await eventsOf(owner.org_id, 'webhook.disabled');
    assert.equal(event?.actor, 'system');
  });

  test('ends with a success', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    receiver.reply = (_, nth) => ({ status: nth === 1 ? 500 : 204 });
    await happen(api, owner.org_id, 1);
    await webhookWhen(api, owner, webhook, 'failing', ({ failing_since }) => failing_since !== null);
    await failingFor(webhook.id, 6 * 24 * HOUR_MS);
    await happen(api, owner.org_id, 2);
    const after = await webhookWhen(
      api,
      owner,
      webhook,
      'well',
      ({ failing_since }) => failing_since === null,
    );
    assert.equal(after.status, 'enabled');
  });

  test('raises one event: at the fifth failure of a delivery, or after an hour', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    const told = () => eventsOf(owner.org_id, 'webhook.failing');
    let nth_well = 0;
    receiver.reply = (_, nth) => ({ status: nth === nth_well ? 204 : 500 });
    await happen(api, owner.org_id, 1);
    for (let attempts = 1; attempts < 5; attempts++) {
      await until('it is recorded', async () => {
        const [delivery] = await deliveriesOf(api, owner, webhook);
        return delivery?.attempt_count === attempts;
      });
      assert.deepEqual(await told(), []);
      await untilRetried(api, webhook, receiver, attempts, attempts + 1);
    }
    await until('the event is raised', async () => (await told()).length === 1);
    await untilRetried(api, webhook, receiver, 5, 6);
    await until('it is recorded', async () => {
      const [delivery] = await deliveriesOf(api, owner, webhook);
      return delivery?.attempt_count === 6;
    });
    assert.equal((await told()).length, 1);
    // It recovers and fails again: another event.
    nth_well = 7;
    await happen(api, owner.org_id, 2);
    await webhookWhen(api, owner, webhook, 'well', ({ failing_since }) => failing_since === null);
    await happen(api, owner.org_id, 3);
    await webhookWhen(api, owner, webhook, 'failing', ({ failing_since }) => failing_since !== null);
    await failingFor(webhook.id, HOUR_MS + 1_000);
    await happen(api, owner.org_id, 4);
    await until('it is raised again', async () => (await told()).length === 2);
    const [event] = await told();
    assert.equal((event?.data as { webhook: { id: string } } | undefined)?.webhook.id, webhook.id);
    assert.equal(event?.user_id, null);
  });
});

describe('a webhook that is enabled again', () => {
  test('is not failing, and gets new events', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url, { events: ['member.added'] });
    receiver.reply = () => ({ status: 410 });
    await happen(api, owner.org_id, 1);
    await webhookWhen(api, owner, webhook, 'disabled', ({ status }) => status === 'disabled');
    receiver.reply = () => ({ status: 204 });
    const enabled = await api.as(owner).patch<{ status: string }>(`/v1/webhooks/${webhook.id}`, {
      status: 'enabled',
    });
    assert.equal(enabled.body.status, 'enabled');
    await happen(api, owner.org_id, 2);
    const got = await receiver.has(2);
    assert.equal(got[1]?.event.data['n'], 2);
    const after = await webhookWhen(
      api,
      owner,
      webhook,
      'well',
      ({ failing_since }) => failing_since === null,
    );
    assert.equal(after.disabled_at, null);
  });
});

describe('a delivery that is inserted during the disabling', () => {
  const statesOf = async (id: WebhookId) => {
    const query = api.db.selectFrom('webhook_deliveries').select('state');
    return (await query.where('webhook_id', '=', id).execute()).map(({ state }) => state);
  };

  test('fails with the others', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const { id } = await makeWebhook(api, owner, receiver.url);
    await transaction(api.db, async (tx) => {
      // No other dispatcher runs meanwhile.
      await tx.selectFrom('event_head').select('position').forUpdate().execute();
      await happen(api, owner.org_id, 1);
      await fanOutToWebhooks(tx, present(await numberEvents(tx, 100), 'the head'));
      assert.equal((await api.as(owner).patch(`/v1/webhooks/${id}`, { status: 'disabled' })).status, 200);
    });
    await until('it has failed', async () => (await statesOf(id)).join() === 'failed');
    assert.deepEqual(receiver.got, []);
  });

  test('is not sent when it is enabled again', async () => {
    const owner = await api.person();
    const { id } = await makeWebhook(api, owner, (await startRecorder()).url);
    await api.as(owner).patch(`/v1/webhooks/${id}`, { status: 'disabled' });
    await api.db
      .insertInto('webhook_deliveries')
      .values({ id: newId('whd'), webhook_id: id, event_id: newId('evt'), position: 1 })
      .execute();
    await api.as(owner).patch(`/v1/webhooks/${id}`, { status: 'enabled' });
    assert.deepEqual(await statesOf(id), ['failed']);
  });
});
