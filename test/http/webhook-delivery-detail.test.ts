/** One delivery: its event, its request, and the answer to each attempt. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { WebhookId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import type { Person } from '../support/people.ts';
import { until } from '../support/waiting.ts';
import {
  type DeliveryOut,
  happen,
  type MadeWebhook,
  makeDelivery,
  makeWebhook,
  sendWebhooks,
  startRecorder,
} from '../support/webhooks.ts';

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

const api = await apiForFile();
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
