/** What a process that died leaves behind, what a slow receiver costs the others, and what is removed in time. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import type { WebhookDeliveryId, WebhookId } from '../../src/lib/ids.ts';
import { newId } from '../../src/lib/ids.ts';
import { sweep } from '../../src/tasks/sweep.ts';
import { reviveForgotten } from '../../src/webhooks/deliveries.ts';
import { giveLease, takeLease } from '../../src/webhooks/drain-store.ts';
import { FAST, SLOW_MS } from '../../src/webhooks/lanes.ts';
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
const senders = sendWebhooks(api);
const { db } = api;
const DAY_MS = 86_400_000;

const dispatched = () =>
  until('all events are dispatched', async () => {
    const waiting = await db.selectFrom('events').select('id').where('position', 'is', null).execute();
    return waiting.length === 0;
  });

describe('the lease', () => {
  test('is held by one, told to come back for more, and taken over once its time is over', async () => {
    const id = newId('wh');
    assert.equal(await takeLease(db, id, 'a', 15), true);
    assert.equal(await takeLease(db, id, 'b', 15), false);
    assert.equal(await giveLease(db, id, 'b', false), true, 'nothing to give back');
    assert.equal(await giveLease(db, id, 'a', false), false, 'b has asked for it meanwhile');
    assert.equal(await giveLease(db, id, 'a', false), true);
    assert.equal(await takeLease(db, id, 'b', 15), true);
    await db
      .updateTable('webhook_drains')
      .set({ until: new Date(Date.now() - 1_000) })
      .where('webhook_id', '=', id)
      .execute();
    assert.equal(await takeLease(db, id, 'c', 15), true);
    assert.equal(await giveLease(db, id, 'b', true), true);
    assert.equal(await takeLease(db, id, 'b', 15), false, 'b could not give back what is not its own');
  });

  test('of many at once one gets it', async () => {
    const id = newId('wh');
    const got = await Promise.all(
      Array.from({ length: 20 }, (_, nth) => takeLease(api.context.db, id, `${nth}`, 15)),
    );
    assert.equal(got.filter(Boolean).length, 1);
  });

  test('of a process that died: what it had under way is sent by another', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const { id } = await makeWebhook(api, owner, receiver.url);
    const webhook_id = id as WebhookId;
    assert.ok(await takeLease(db, webhook_id, 'a process that is dead', 15));
    await happen(api, owner.org_id, 1);
    await dispatched();
    await until('its job has been looked at', async () => {
      const lease = await db
        .selectFrom('webhook_drains')
        .select('again')
        .where('webhook_id', '=', webhook_id)
        .executeTakeFirst();
      return lease?.again;
    });
    await db
      .updateTable('webhook_batches')
      .set({ created_at: new Date(Date.now() - 60_000) })
      .where('webhook_id', '=', webhook_id)
      .execute();
    await reviveForgotten(db);
    assert.equal(receiver.got.length, 0, 'not while the lease may still be held');
    await db
      .updateTable('webhook_drains')
      .set({ until: new Date(Date.now() - 1) })
      .where('webhook_id', '=', webhook_id)
      .execute();
    await reviveForgotten(db);
    await receiver.has(1);
  });
});

describe('a receiver that hangs', () => {
  test('is moved to the slow lane, and back once it answers', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    const release = receiver.hold((_, nth) => nth === 1);
    const is_slow = async () => {
      const { slow } = await db
        .selectFrom('webhooks')
        .select('slow')
        .where('id', '=', webhook.id as WebhookId)
        .executeTakeFirstOrThrow();
      return slow;
    };
    const jobs = async () => {
      const { rows } = await sql<{ n: number }>`
        select count(*) as n from graphile_worker.jobs where task_identifier = ${FAST.task} and locked_at is not null`.execute(
        db,
      );
      return rows[0]?.n;
    };
    const began_ms = Date.now();
    await happen(api, owner.org_id, 1);
    await receiver.has(1);
    // Its request is still under way when its place in the fast lane is free again.
    await until('the fast lane is free', async () => Date.now() - began_ms > SLOW_MS && (await jobs()) === 0);
    assert.equal((await deliveriesOf(api, owner, webhook))[0]?.attempt_count, 0);
    release();
    await until('it is in the slow lane', is_slow);
    await happen(api, owner.org_id, 2);
    await receiver.has(2);
    await until('it is back', async () => !(await is_slow()));
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
  /** As if it had been made so many days ago: an id tells its time. */
  async function age(id: string, days: number): Promise<void> {
    const at = new Date(Date.now() - days * DAY_MS);
    const old = newId('whd', at.getTime());
    await db
      .updateTable('webhook_deliveries')
      .set({ id: old, created_at: at, first_at: at })
      .where('id', '=', id as WebhookDeliveryId)
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
    const orphans = await db
      .selectFrom('webhook_deliveries')
      .select('id')
      .where('first_at', '<', new Date(Date.now() - 14 * DAY_MS))
      .execute();
    assert.deepEqual(orphans, []);
  });

  test('leaves an old delivery that was asked for again, with its last attempt', async () => {
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
    for (const table of ['webhook_deliveries', 'webhook_drains'] as const) {
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
    // As if they had been made today: an id tells its time.
    const today = newId('whd').slice(0, 14);
    await sql`insert into webhook_deliveries (id, webhook_id, event_id, position, state)
      select ${today}::text || lpad(n::text, 16, '0'), ${id}, 'evt', n, 'delivered' from generate_series(1, 10001) as n`.execute(
      db,
    );
    assert.ok(await takeLease(db, webhook_id, 'a process that is dead', 15));
    await sweep(db);
    for (const table of ['webhook_deliveries', 'webhook_drains'] as const) {
      const query = db.selectFrom(table).select('webhook_id').where('webhook_id', '=', webhook_id);
      assert.equal((await query.execute()).length, 0, table);
    }
  });

  test('what is pending without its event has failed, and retries go out as before', async () => {
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
      next_attempt_at: n === 0 ? null : new Date(month_ago_ms),
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

  test('a webhook of a deleted organisation goes the same way', async () => {
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

test('a webhook that is failing says since when', async () => {
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

test('a process that is told to stop writes what is under way, sends nothing more, and holds nothing', async () => {
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
    .selectFrom('webhook_drains')
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
