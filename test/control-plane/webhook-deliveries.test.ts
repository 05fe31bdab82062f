/** Deliveries: who gets them, order, retries, redelivery, replay, their list, and one with its event, request and attempts. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { InstanceId, WebhookId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import type { Person } from '../support/people.ts';
import { until } from '../support/waiting.ts';
import {
  type DeliveryOut,
  deliveriesOf,
  happen,
  type MadeWebhook,
  makeDelivery,
  makeProvenWebhook,
  makeWebhook,
  sendWebhooks,
  startRecorder,
  untilRetried,
} from '../support/webhooks.ts';

const api = await apiForFile();
sendWebhooks(api);
const numbers = (got: readonly { event: { data: Record<string, unknown> } }[]) =>
  got.map(({ event }) => event.data['n']);
/** No retry while the test runs. */
const LATER = { status: 503, headers: { 'retry-after': '3600' } } as const;
const agoMs = (ms: number) => new Date(Date.now() - ms).toISOString();

describe('an event', () => {
  test('is sent to the enabled webhooks of its organisation that subscribe to it, and to no other', async () => {
    const owner = await api.person();
    const stranger = await api.person();
    const [all, some, other, theirs] = [
      await startRecorder(),
      await startRecorder(),
      await startRecorder(),
      await startRecorder(),
    ];
    await makeWebhook(api, owner, all.url);
    await makeWebhook(api, owner, some.url, { events: ['member.removed', 'member.added'] });
    await makeWebhook(api, owner, other.url, { events: ['member.removed'] });
    await makeWebhook(api, stranger, theirs.url);
    await happen(api, owner.org_id, 1);
    await happen(api, owner.org_id, 2, { type: 'member.removed' });
    await happen(api, stranger.org_id, 3);
    assert.deepEqual(new Set(numbers(await all.has(2))), new Set([1, 2]));
    assert.deepEqual(new Set(numbers(await some.has(2))), new Set([1, 2]));
    assert.deepEqual(numbers(await other.has(1)), [2]);
    assert.deepEqual(numbers(await theirs.has(1)), [3]);
  });

  test('that is rolled back is never sent', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    await makeWebhook(api, owner, receiver.url);
    const refused = await api.as(owner).post('/v1/instances', { name: 'a', image: 'none' });
    assert.ok(refused.status >= 400);
    await happen(api, owner.org_id, 1);
    assert.deepEqual(numbers(await receiver.has(1)), [1]);
  });
});

describe('order', () => {
  test('the first attempts of one instance are in order, also after failures', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url, { events: ['vm.started'] });
    const { id } = await api.instance(owner);
    let under_way = 0;
    let most = 0;
    receiver.reply = async (_, nth) => {
      under_way += 1;
      most = Math.max(most, under_way);
      await new Promise((resolve) => setImmediate(resolve));
      under_way -= 1;
      return nth % 3 === 0 ? LATER : { status: 204 };
    };
    for (let n = 0; n < 40; n++) {
      await happen(api, owner.org_id, n, { type: 'vm.started', instance_id: id });
    }
    const got = await receiver.has(40);
    assert.deepEqual(
      numbers(got),
      Array.from({ length: 40 }, (_, n) => n),
    );
    assert.equal(most, 1);
    const failed = await until('all are recorded', async () => {
      const all = await deliveriesOf(api, owner, webhook);
      return (
        all.every(({ attempt_count }) => attempt_count === 1) && all.filter((d) => d.status === 'pending')
      );
    });
    assert.equal(failed.length, 13);
  });

  test('an instance whose event hangs delays neither another instance nor events without one', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    await makeProvenWebhook(api, owner, receiver.url, { events: ['vm.started'] });
    const [stuck, free] = [await api.instance(owner), await api.instance(owner)];
    const release = receiver.hold(({ event }) => event.data['n'] === 1);
    const started = (n: number, instance_id?: InstanceId) =>
      happen(api, owner.org_id, n, { type: 'vm.started', ...(instance_id ? { instance_id } : {}) });
    await started(1, stuck.id);
    await started(2, stuck.id);
    await started(3, free.id);
    await started(4);
    assert.deepEqual(new Set(numbers(await receiver.has(3))), new Set([1, 3, 4]));
    release();
    assert.equal(numbers(await receiver.has(4)).at(-1), 2);
  });
});

describe('a failed attempt', () => {
  test('is retried on schedule, with the same id and the same bytes', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    receiver.reply = (_, nth) => ({ status: nth < 3 ? 500 : 204, body: `answer ${nth}` });
    await happen(api, owner.org_id, 1);
    await receiver.has(1);
    const [first] = await until('it is recorded', async () => {
      const all = await deliveriesOf(api, owner, webhook);
      return all[0]?.attempt_count === 1 && all;
    });
    assert.equal(first?.status, 'pending');
    const wait_ms = Date.parse(first?.next_attempt_at ?? '') - Date.parse(first?.attempts[0]?.at ?? '');
    assert.ok(wait_ms >= 4_000 && wait_ms < 36_000, `${wait_ms}`);
    await untilRetried(api, webhook, receiver, 1, 2);
    await untilRetried(api, webhook, receiver, 2, 3);
    const got = await receiver.has(3);
    assert.equal(new Set(got.map(({ id }) => id)).size, 1);
    assert.equal(new Set(got.map(({ body }) => body)).size, 1);
    const [delivery] = await until('it is delivered', async () => {
      const all = await deliveriesOf(api, owner, webhook);
      return all[0]?.status === 'delivered' && all;
    });
    assert.deepEqual(
      delivery?.attempts.map(({ number, status, error, response }) => ({ number, status, error, response })),
      [
        { number: 1, status: 500, error: 'not a 2xx status', response: 'answer 1' },
        { number: 2, status: 500, error: 'not a 2xx status', response: 'answer 2' },
        { number: 3, status: 204, error: null, response: '' },
      ],
    );
    assert.equal(delivery?.next_attempt_at, null);
  });

  test('is retried when the receiver asks for it', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    receiver.reply = () => ({ status: 503, headers: { 'retry-after': '3600' } });
    await happen(api, owner.org_id, 1);
    const [delivery] = await until('it is recorded', async () => {
      const all = await deliveriesOf(api, owner, webhook);
      return all[0]?.attempt_count === 1 && all;
    });
    const wait_ms = Date.parse(delivery?.next_attempt_at ?? '') - Date.parse(delivery?.attempts[0]?.at ?? '');
    assert.ok(wait_ms >= 3_600_000 && wait_ms < 3_630_000, `${wait_ms}`);
  });

  test('is the last after the tenth, and a redirect counts as one and is not followed', async () => {
    const owner = await api.person();
    const [receiver, elsewhere] = [await startRecorder(), await startRecorder()];
    const webhook = await makeWebhook(api, owner, receiver.url);
    receiver.reply = () => ({ status: 307, headers: { location: elsewhere.url } });
    await happen(api, owner.org_id, 1);
    for (let attempts = 1; attempts < 10; attempts++) {
      await untilRetried(api, webhook, receiver, attempts, attempts + 1);
    }
    const [delivery] = await until('it has failed', async () => {
      const all = await deliveriesOf(api, owner, webhook);
      return all[0]?.status === 'failed' && all;
    });
    assert.equal(delivery?.attempt_count, 10);
    assert.match(delivery?.attempts.at(-1)?.error ?? '', /redirect/);
    assert.equal(elsewhere.got.length, 0);
    assert.equal(delivery?.next_attempt_at, null);
  });

  test('keeps the first 4 KiB of the answer', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    receiver.reply = () => ({ status: 500, body: 'x'.repeat(10_000) });
    await happen(api, owner.org_id, 1);
    const [delivery] = await until('it is recorded', async () => {
      const all = await deliveriesOf(api, owner, webhook);
      return all[0]?.attempt_count === 1 && all;
    });
    assert.equal(delivery?.attempts[0]?.response, 'x'.repeat(4096));
  });
});

describe('202', () => {
  test('a ping is sent to that webhook only, whatever its events', async () => {
    const owner = await api.person();
    const [pinged, other] = [await startRecorder(), await startRecorder()];
    const { id, secret: _, ...shown } = await makeWebhook(api, owner, pinged.url, { events: ['vm.failed'] });
    await makeWebhook(api, owner, other.url);
    const answer = await api.as(owner).post<{ event_id: string }>(`/v1/webhooks/${id}/ping`);
    assert.equal(answer.status, 202, answer.text);
    const [got] = await pinged.has(1);
    assert.equal(got?.id, answer.body.event_id);
    assert.equal(got?.event.type, 'webhook.ping');
    assert.deepEqual(got?.event.data['webhook'], { id, ...shown });
    await happen(api, owner.org_id, 1);
    assert.deepEqual(numbers(await other.has(1)), [1]);
  });

  test('a redelivery sends the same id and bytes again, also after a success', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    await happen(api, owner.org_id, 1);
    const delivery = await until('it is delivered', async () => {
      const [first] = await deliveriesOf(api, owner, webhook);
      return first?.status === 'delivered' && first;
    });
    const path = `/v1/webhooks/${webhook.id}/deliveries/${delivery.id}/redeliver`;
    const headers = { 'idempotency-key': 'again' };
    const asked = await api.as(owner).post<DeliveryOut>(path, {}, { headers });
    assert.equal(asked.status, 202, asked.text);
    assert.equal(asked.body.status, 'pending');
    const got = await receiver.has(2);
    assert.equal((await api.as(owner).post(path, {}, { headers })).headers['idempotency-replayed'], 'true');
    assert.deepEqual([got[1]?.id, got[1]?.body], [got[0]?.id, got[0]?.body]);
    await until('it is delivered again', async () => {
      const [first] = await deliveriesOf(api, owner, webhook);
      return first?.status === 'delivered' && first.attempt_count === 2;
    });
  });

  test('a replay sends all since a time in order: delivered, failed, and missed while disabled', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url, { events: ['vm.started'] });
    const { id: instance_id } = await api.instance(owner);
    const started = (n: number) => happen(api, owner.org_id, n, { type: 'vm.started', instance_id });
    const path = `/v1/webhooks/${webhook.id}`;
    await started(1);
    await receiver.has(1);
    receiver.reply = () => LATER;
    await started(2);
    await receiver.has(2);
    await api.as(owner).patch(path, { status: 'disabled' });
    await started(3);
    await started(4);
    await until('they are dispatched', async () => {
      const waiting = await api.db.selectFrom('events').select('id').where('position', 'is', null).execute();
      return waiting.length === 0;
    });
    receiver.reply = () => ({ status: 204 });
    await api.as(owner).patch(path, { status: 'enabled' });
    const replay = await api.as(owner).post<{ count: number }>(`${path}/replay`, { since: agoMs(60_000) });
    assert.equal(replay.status, 202, replay.text);
    assert.deepEqual(replay.body, { count: 4 });
    const got = await receiver.has(6);
    assert.deepEqual(numbers(got), [1, 2, 1, 2, 3, 4]);
    assert.equal(got[0]?.id, got[2]?.id);
    const none = await api.as(owner).post<{ count: number }>(`${path}/replay`, { since: agoMs(-1_000) });
    assert.deepEqual(none.body, { count: 0 });
  });
});

describe('200', () => {
  test('deliveries page through, the newest events first, and by status', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    receiver.reply = ({ event }) => (event.data['n'] === 2 ? LATER : { status: 204 });
    const ids: string[] = [];
    for (const n of [1, 2, 3]) ids.unshift(await happen(api, owner.org_id, n));
    await until(
      'all are recorded',
      async () =>
        (await deliveriesOf(api, owner, webhook)).filter((each) => each.attempt_count === 1).length === 3,
    );
    const path = `/v1/webhooks/${webhook.id}/deliveries`;
    const first = await api.as(owner).get<Page<DeliveryOut>>(`${path}?limit=2`);
    const rest = await api.as(owner).get<Page<DeliveryOut>>(`${path}?cursor=${first.body.next_cursor}`);
    assert.deepEqual(
      [...first.body.data, ...rest.body.data].map(({ event_id }) => event_id),
      ids,
    );
    const pending = await api.as(owner).get<Page<DeliveryOut>>(`${path}?status=pending`);
    assert.deepEqual(
      pending.body.data.map(({ event_id }) => event_id),
      [ids[1]],
    );
    const other = await makeWebhook(api, owner, receiver.url);
    const moved = `/v1/webhooks/${other.id}/deliveries?cursor=${first.body.next_cursor}`;
    assertError(await api.as(owner).get(moved), 'INVALID_REQUEST');
  });
});

interface DetailOut extends DeliveryOut {
  readonly resource: { readonly type: string; readonly id: string; readonly name: string | null } | null;
  readonly request: {
    readonly method: string;
    readonly url: string;
    readonly headers: Record<string, string>;
    readonly body: string;
  } | null;
  readonly attempts: readonly (DeliveryOut['attempts'][number] & {
    readonly url: string;
    readonly response_headers: Record<string, string>;
  })[];
}

sendWebhooks(api);

/** The webhook's one delivery, once `condition` holds for it. */
async function delivery(
  who: Person,
  { id }: Pick<MadeWebhook, 'id'>,
  condition: (found: DetailOut) => boolean = () => true,
): Promise<DetailOut> {
  return until('the delivery is there', async () => {
    const list = await api.as(who).get<Page<DetailOut>>(`/v1/webhooks/${id}/deliveries`);
    assert.ok(list.body.data.length <= 1, list.text);
    const [only] = list.body.data;
    if (only === undefined) return false;
    const one = await api.as(who).get<DetailOut>(`/v1/webhooks/${id}/deliveries/${only.id}`);
    assert.equal(one.status, 200, one.text);
    return condition(one.body) && one.body;
  });
}
const attempted = (who: Person, webhook: MadeWebhook, count: number) =>
  delivery(who, webhook, ({ attempt_count }) => attempt_count === count);

describe('a delivery', () => {
  test('shows the request exactly as the receiver got it', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    await happen(api, owner.org_id, 1);
    const [got] = await receiver.has(1);
    const { request } = await attempted(owner, webhook, 1);
    assert.equal(request?.method, 'POST');
    assert.equal(request?.url, receiver.url);
    assert.equal(request?.body, got?.body);
    for (const [name, value] of Object.entries(request?.headers ?? {})) {
      assert.equal(value, got?.headers[name], name);
    }
    assert.ok(request?.headers['webhook-signature']?.startsWith('v1,'));
    const { text } = await api.as(owner).get(`/v1/webhooks/${webhook.id}/deliveries`);
    assert.ok(!JSON.stringify(request).includes(webhook.secret.slice('whsec_'.length)));
    assert.ok(!text.includes('webhook-signature'), 'the list has no requests');
  });

  test('names the instance of its event, also after the instance has another name', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    const instance = await api.instance(owner);
    const [name] = [instance.name];
    await receiver.has(1);
    const renamed = await api.as(owner).patch(`/v1/instances/${instance.id}`, { name: `${name}-2` });
    assert.equal(renamed.status, 200, renamed.text);
    const { event_type, resource } = await delivery(owner, webhook);
    assert.equal(event_type, 'instance.created');
    assert.deepEqual(resource, { type: 'instance', id: instance.id, name });
  });

  test('shows of each attempt its URL, and the status, headers and body of the answer, without cookies', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    receiver.reply = (_, nth) => ({
      status: nth === 1 ? 503 : 200,
      headers: { 'retry-after': '3600', 'set-cookie': 'session=1' },
      body: `answer ${nth}`,
    });
    await happen(api, owner.org_id, 1);
    const first = await attempted(owner, webhook, 1);
    const moved = `${receiver.url}/moved`;
    await api.as(owner).patch(`/v1/webhooks/${webhook.id}`, { url: moved });
    await api.as(owner).post(`/v1/webhooks/${webhook.id}/deliveries/${first.id}/redeliver`, {});
    const { attempts, request } = await attempted(owner, webhook, 2);
    assert.deepEqual(
      attempts.map(({ number, url, status, error, response }) => ({ number, url, status, error, response })),
      [
        { number: 1, url: receiver.url, status: 503, error: 'not a 2xx status', response: 'answer 1' },
        { number: 2, url: moved, status: 200, error: null, response: 'answer 2' },
      ],
    );
    assert.equal(attempts[0]?.response_headers['retry-after'], '3600');
    assert.ok(!('set-cookie' in (attempts[0]?.response_headers ?? {})));
    assert.equal(request?.url, moved);
  });

  test('that was never attempted shows the request as it would be sent', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    await makeDelivery(api, owner, webhook.id as WebhookId);
    const { request, attempts } = await delivery(owner, webhook);
    assert.deepEqual(attempts, []);
    assert.equal(request?.url, receiver.url);
    const age_s = Date.now() / 1000 - Number(request?.headers['webhook-timestamp']);
    assert.ok(age_s >= 0 && age_s < 60, `${age_s}`);
  });

  test('whose event has expired has neither event nor request, and keeps its attempts', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url);
    await happen(api, owner.org_id, 1);
    const { event_id } = await attempted(owner, webhook, 1);
    await api.context.db.deleteFrom('events').where('id', '=', event_id).execute();
    const { event_type, resource, request, attempts } = await delivery(owner, webhook);
    assert.deepEqual([event_type, resource, request, attempts.length], [null, null, null, 1]);
  });

  test('is not found by another webhook, organisation, or a malformed id: 404', async () => {
    const [owner, stranger] = [await api.person(), await api.person()];
    const { url } = await startRecorder();
    const [webhook, other] = [await makeWebhook(api, owner, url), await makeWebhook(api, owner, url)];
    const id = await makeDelivery(api, owner, webhook.id as WebhookId);
    const path = `/v1/webhooks/${webhook.id}/deliveries`;
    assert.equal((await api.as(owner).get(`${path}/${id}`)).status, 200);
    assertError(await api.as(stranger).get(`${path}/${id}`), 'NOT_FOUND');
    assertError(await api.as(owner).get(`/v1/webhooks/${other.id}/deliveries/${id}`), 'NOT_FOUND');
    assertError(await api.as(owner).get(`${path}/whd_x`), 'NOT_FOUND');
  });
});
