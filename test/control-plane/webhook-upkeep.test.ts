/** Leases, slow receivers, the sweep, and the end of a process. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import { sweep } from '../../src/control-plane/sweep.ts';
import { Sender } from '../../src/control-plane/webhooks/sender.ts';
import { listDueWebhooks, releaseLease, takeLease } from '../../src/control-plane/webhooks/store.ts';
import { newId, type WebhookDeliveryId, type WebhookId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
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
const lines: string[] = [];
const log = createLog('webhooks', 'debug', { write: (line) => void lines.push(line) });
const senders = sendWebhooks(api, { log });
const { db } = api;
const DAY_MS = 86_400_000;

const dispatched = () =>
  until('all events are dispatched', async () => {
    const waiting = await db.selectFrom('events').select('id').where('position', 'is', null).execute();
    return waiting.length === 0;
  });

describe('the lease', () => {
  test('has one holder, and is taken over once it has expired', async () => {
    const id = newId('wh');
    assert.equal(await takeLease(db, id, 'a', 15), true);
    assert.equal(await takeLease(db, id, 'b', 15), false);
    await releaseLease(db, id, 'b');
    assert.equal(await takeLease(db, id, 'b', 15), false, 'b could not release the lease of a');
    await releaseLease(db, id, 'a');
    assert.equal(await takeLease(db, id, 'b', 15), true);
    await db
      .updateTable('webhook_leases')
      .set({ until: new Date(Date.now() - 1_000) })
      .where('webhook_id', '=', id)
      .execute();
    assert.equal(await takeLease(db, id, 'c', 15), true);
    await releaseLease(db, id, 'b');
    assert.equal(await takeLease(db, id, 'b', 15), false, 'b could not release the lease of c');
  });

  test('goes to one of many that take it at once', async () => {
    const id = newId('wh');
    const got = await Promise.all(
      Array.from({ length: 20 }, (_, nth) => takeLease(api.context.db, id, `${nth}`, 15)),
    );
    assert.equal(got.filter(Boolean).length, 1);
  });

  test('of a process that died expires, and another process sends the pending deliveries', async (t) => {
    const runs = t.mock.method(Sender.prototype, 'run');
    const owner = await api.person();
    const receiver = await startRecorder();
    const { id } = await makeWebhook(api, owner, receiver.url);
    const webhook_id = id as WebhookId;
    assert.ok(await takeLease(db, webhook_id, 'a process that is dead', 15));
    await happen(api, owner.org_id, 1);
    await dispatched();
    await until('a sender was refused the lease', () => runs.mock.callCount() > 0);
    await Promise.all(runs.mock.calls.map(({ result }) => result));
    const due = (await listDueWebhooks(db)).map((each) => each.id);
    assert.ok(!due.includes(webhook_id), 'not due while the lease is live');
    assert.equal(receiver.got.length, 0);
    await db
      .updateTable('webhook_leases')
      .set({ until: new Date(Date.now() - 1) })
      .where('webhook_id', '=', webhook_id)
      .execute();
    await receiver.has(1);
  });

  test("does not hide from its holder what another process made due, while the holder's request hangs", async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    const release = receiver.hold((_, nth) => nth === 2);
    await happen(api, owner.org_id, 1);
    await until('the first is delivered', async () => {
      return (await deliveriesOf(api, owner, webhook))[0]?.status === 'delivered';
    });
    await happen(api, owner.org_id, 2);
    await receiver.has(2);
    await db
      .updateTable('webhook_deliveries')
      .set({ state: 'pending', tries: 0, next_attempt_at: new Date(Date.now() - 1_000) })
      .where('webhook_id', '=', webhook.id as WebhookId)
      .where('state', '=', 'delivered')
      .execute();
    await receiver.has(3);
    release();
  });
});

describe('a receiver that hangs', () => {
  test('is slow from then on, and fast again once it answers', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    const release = receiver.hold((_, nth) => nth === 1);
    const logged = (what: string) => lines.some((line) => line.includes(webhook.id) && line.includes(what));
    await happen(api, owner.org_id, 1);
    await receiver.has(1);
    await until('it counts as slow', () => logged('the receiver is slow'));
    assert.equal((await deliveriesOf(api, owner, webhook))[0]?.attempt_count, 0);
    release();
    await until('its sender has ended', async () => {
      const leases = db.selectFrom('webhook_leases').select('owner');
      return (await leases.where('webhook_id', '=', webhook.id as WebhookId).execute()).length === 0;
    });
    assert.ok(!logged('fast again'));
    await happen(api, owner.org_id, 2);
    await receiver.has(2);
    await until('it counts as fast', () => logged('the receiver is fast again'));
  });
});

describe('the sweep', () => {
  async function attempted(owner: Awaited<ReturnType<typeof api.person>>, url: string) {
    const webhook = await makeWebhook(api, owner, url);
    await happen(api, owner.org_id, 1);
    const delivery = await until('it is delivered', async () => {
      const [first] = await deliveriesOf(api, owner, webhook);
      return first?.status === 'delivered' && first;
    });
    return { webhook, delivery };
  }
  /** As if it had been made so many days ago: an id has its time. */
  async function age(id: string, days: number): Promise<void> {
    const at = new Date(Date.now() - days * DAY_MS);
    const old = newId('whd', at.getTime());
    await db
      .updateTable('webhook_deliveries')
      .set({ id: old, created_at: at })
      .where('id', '=', id as WebhookDeliveryId)
      .execute();
    await db
      .updateTable('webhook_attempts')
      .set({ delivery_id: old, at })
      .where('delivery_id', '=', id as WebhookDeliveryId)
      .execute();
  }

  test('removes deliveries and attempts after 14 days, and not before', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const [old, young] = [await attempted(owner, receiver.url), await attempted(owner, receiver.url)];
    await until(
      'the event of the second has come to the first as well',
      async () =>
        (await deliveriesOf(api, owner, old.webhook)).filter(({ status }) => status === 'delivered')
          .length === 2,
    );
    await age(old.delivery.id, 14.1);
    await age(young.delivery.id, 13.9);
    await sweep(db);
    const left = async (webhook: { id: string }) =>
      (await deliveriesOf(api, owner, webhook)).map(({ attempts }) => attempts.length);
    // The webhook made first has also had the event of the second.
    assert.deepEqual(await left(old.webhook), [1]);
    assert.deepEqual(await left(young.webhook), [1]);
    const old_attempts = await db
      .selectFrom('webhook_attempts')
      .select('number')
      .where('at', '<', new Date(Date.now() - 14 * DAY_MS))
      .execute();
    assert.deepEqual(old_attempts, []);
  });

  test('leaves an old delivery that was redelivered, with its last attempt', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const { webhook, delivery } = await attempted(owner, receiver.url);
    await age(delivery.id, 20);
    const [aged] = await deliveriesOf(api, owner, webhook);
    const path = `/v1/webhooks/${webhook.id}/deliveries/${aged?.id}/redeliver`;
    assert.equal((await api.as(owner).post(path)).status, 202);
    await receiver.has(2);
    await until('it is delivered again', async () => {
      const [first] = await deliveriesOf(api, owner, webhook);
      return first?.attempt_count === 2 && first.status === 'delivered';
    });
    await sweep(db);
    const [kept] = await deliveriesOf(api, owner, webhook);
    assert.deepEqual(
      kept?.attempts.map(({ number }) => number),
      [2],
    );
  });

  test('removes all of a deleted webhook, which gets nothing more', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const { webhook } = await attempted(owner, receiver.url);
    const [gone, other] = [webhook.id as WebhookId, await startRecorder()];
    await makeWebhook(api, owner, other.url);
    await api.as(owner).delete(`/v1/webhooks/${gone}`);
    await happen(api, owner.org_id, 2);
    await other.has(1);
    assert.equal(receiver.got.length, 1);
    await sweep(db);
    for (const table of ['webhook_deliveries', 'webhook_leases'] as const) {
      const rows = await db.selectFrom(table).select('webhook_id').where('webhook_id', '=', gone).execute();
      assert.deepEqual(rows, [], table);
    }
    const row = await db.selectFrom('webhooks').select('id').where('id', '=', gone).executeTakeFirst();
    assert.equal(row, undefined);
  });

  test('removes all of one with more than fits into a statement, and the lease of a process that died', async () => {
    const owner = await api.person();
    const { id } = await makeWebhook(api, owner, (await startRecorder()).url);
    const webhook_id = id as WebhookId;
    await api.as(owner).delete(`/v1/webhooks/${id}`);
    // As if they had been made today: an id has its time.
    const today = newId('whd').slice(0, 14);
    await sql`insert into webhook_deliveries (id, webhook_id, event_id, position, state)
      select ${today}::text || lpad(n::text, 16, '0'), ${id}, 'evt', n, 'delivered' from generate_series(1, 10001) as n`.execute(
      db,
    );
    assert.ok(await takeLease(db, webhook_id, 'a process that is dead', 15));
    await sweep(db);
    for (const table of ['webhook_deliveries', 'webhook_leases'] as const) {
      const query = db.selectFrom(table).select('webhook_id').where('webhook_id', '=', webhook_id);
      assert.equal((await query.execute()).length, 0, table);
    }
  });

  test('fails pending deliveries without their events, and retries go out as before', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    const webhook_id = webhook.id as WebhookId;
    receiver.reply = (_, nth) => ({ status: nth === 1 ? 500 : 204 });
    await happen(api, owner.org_id, 1);
    await receiver.has(1);
    const month_ago_ms = Date.now() - 31 * DAY_MS;
    const orphans = Array.from({ length: 40 }, (_, n) => ({
      id: newId('whd'),
      webhook_id,
      event_id: newId('evt', month_ago_ms),
      position: 1_000_000 + n,
      in_order: n === 0,
      next_attempt_at: new Date(month_ago_ms),
    }));
    await db.insertInto('webhook_deliveries').values(orphans).execute();
    await sweep(db);
    await untilRetried(api, webhook, receiver, 1, 2);
    await until('it is delivered', async () => {
      const all = await deliveriesOf(api, owner, webhook);
      return (
        all.at(-1)?.status === 'delivered' && all.slice(0, -1).every(({ status }) => status === 'failed')
      );
    });
  });

  test('removes the webhooks of a deleted organisation too', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const { webhook } = await attempted(owner, receiver.url);
    await db.deleteFrom('organisations').where('id', '=', owner.org_id).execute();
    await sweep(db);
    const left = await db
      .selectFrom('webhook_deliveries')
      .select('id')
      .where('webhook_id', '=', webhook.id as WebhookId)
      .execute();
    assert.deepEqual(left, []);
  });
});

test('a failing webhook has failing_since', async () => {
  const owner = await api.person();
  const receiver = await startRecorder();
  receiver.reply = () => ({ status: 500 });
  const webhook = await makeWebhook(api, owner, receiver.url);
  const { created_at } = webhook;
  await happen(api, owner.org_id, 1);
  const { failing_since } = await webhookWhen(
    api,
    owner,
    webhook,
    'failing',
    (each) => each.failing_since !== null,
  );
  assert.ok((failing_since ?? '') >= created_at);
});

test('a process that stops records its requests in flight, begins none, and releases its leases', async () => {
  const owner = await api.person();
  const receiver = await startRecorder();
  const webhook = await makeWebhook(api, owner, receiver.url, { events: ['vm.started'] });
  const { id: instance_id } = await api.instance(owner);
  const release = receiver.hold((_, nth) => nth === 1);
  for (const n of [1, 2, 3]) {
    await happen(api, owner.org_id, n, { type: 'vm.started', instance_id });
  }
  await dispatched();
  await receiver.has(1);
  const stopped = senders.stop();
  release();
  await stopped;
  assert.deepEqual(
    (await deliveriesOf(api, owner, webhook)).map(({ status }) => status),
    ['pending', 'pending', 'delivered'],
  );
  const lease = await db
    .selectFrom('webhook_leases')
    .selectAll()
    .where('webhook_id', '=', webhook.id as WebhookId)
    .executeTakeFirst();
  assert.equal(lease, undefined);
  await receiver.has(1);
  sendWebhooks(api);
  const got = await receiver.has(3);
  assert.deepEqual(
    got.map(({ event }) => event.data['n']),
    [1, 2, 3],
  );
});
