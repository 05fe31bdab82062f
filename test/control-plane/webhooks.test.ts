/** Webhooks: created, read, changed, deleted; signatures, verified by the package of Standard Webhooks, and bodies. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Webhook } from 'standardwebhooks';
import { setQuota } from '../../src/control-plane/organisations/quotas.ts';
import { signature, signingKey } from '../../src/control-plane/webhooks/attempt.ts';
import { invalid } from '../../src/shared/errors.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import type { Method, Page } from '../support/client.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { makeKey, makeServiceKey, type Person } from '../support/people.ts';
import {
  deliveriesOf,
  type Got,
  happen,
  type MadeWebhook,
  makeWebhook,
  sendWebhooks,
  startRecorder,
  type WebhookOut,
} from '../support/webhooks.ts';

const api = await apiForFile();
const PATH = '/v1/webhooks';
const URL = 'http://127.0.0.1:9/hook';
const BODY = { name: 'hook', url: URL, events: ['vm.started', 'vm.stopped'] };

const SINCE = new Date(Date.now() - 60_000).toISOString();

const ROUTES: readonly (readonly [Method, string, unknown?])[] = [
  ['POST', '', BODY],
  ['GET', ''],
  ['GET', '/:id'],
  ['PATCH', '/:id', { name: 'other' }],
  ['DELETE', '/:id'],
  ['POST', '/:id/rotate-secret'],
  ['POST', '/:id/ping'],
  ['GET', '/:id/deliveries'],
  ['POST', `/:id/deliveries/${newId('whd')}/redeliver`],
  ['POST', '/:id/replay', { since: SINCE }],
];
const call = (who: Person | string | undefined, [method, path, json]: (typeof ROUTES)[number], id: string) =>
  (who === undefined ? api.client : api.as(who)).call(method, `${PATH}${path.replace(':id', id)}`, { json });

async function auditOf({ org_id }: Person) {
  const rows = await api.db
    .selectFrom('audit_log')
    .select(['action', 'target', 'data'])
    .where('org_id', '=', org_id)
    .orderBy('serial')
    .execute();
  return rows.map(({ action, target }) => ({ action, target }));
}

describe('201', () => {
  test('a webhook with its secret, which no other answer has', async () => {
    const owner = await api.person();
    const made = await api.as(owner).post<MadeWebhook>(PATH, BODY);
    assert.equal(made.status, 201, made.text);
    const { secret, ...shown } = made.body;
    assert.match(secret, /^whsec_[A-Za-z0-9+/]{43}=$/);
    assert.equal(made.headers['cache-control'], 'no-store');
    assert.deepEqual(
      { name: shown.name, url: shown.url, events: shown.events, status: shown.status },
      { ...BODY, status: 'enabled' },
    );
    const one = await api.as(owner).get<WebhookOut>(`${PATH}/${shown.id}`);
    assert.deepEqual(one.body, shown);
    const list = await api.as(owner).get<Page<WebhookOut>>(PATH);
    assert.deepEqual(list.body, { data: [shown], next_cursor: null });
    assert.deepEqual(await auditOf(owner), [{ action: 'webhook.create', target: shown.id }]);
  });

  test('the secret is sealed in the database', async () => {
    const owner = await api.person();
    const { id, secret } = await makeWebhook(api, owner, URL);
    const row = await api.db
      .selectFrom('webhooks')
      .selectAll()
      .where('id', '=', id)
      .executeTakeFirstOrThrow();
    assert.ok(!JSON.stringify(row).includes(secret.slice(6)));
    assert.ok(!row.secret.toString('latin1').includes(secret.slice(6)));
    assert.equal(api.context.webhooks.secrets.open(row.secret, id), secret);
  });

  test('a replayed Idempotency-Key returns the first answer, also when the name is another address meanwhile', async (t) => {
    const owner = await api.person();
    const headers = { 'idempotency-key': 'once' };
    const ask = (key: object = headers) =>
      api.as(owner).call<MadeWebhook>('POST', PATH, { json: BODY, headers: { ...key } });
    const first = await ask();
    t.mock.method(api.context.webhooks.outbound, 'checkUrl', async () => {
      throw invalid('url', 'is at a private address');
    });
    const again = await ask();
    assert.deepEqual([again.status, again.body], [201, first.body]);
    assertError(await ask({}), 'INVALID_REQUEST');
  });

  test('a replayed Idempotency-Key returns the first answer, secret included, and makes nothing', async () => {
    const owner = await api.person();
    const headers = { 'idempotency-key': 'once' };
    const first = await api.as(owner).post<MadeWebhook>(PATH, BODY, { headers });
    const again = await api.as(owner).post<MadeWebhook>(PATH, BODY, { headers });
    assert.equal(again.status, 201);
    assert.deepEqual(again.body, first.body);
    assert.equal(again.headers['idempotency-replayed'], 'true');
    assert.equal((await api.as(owner).get<Page<WebhookOut>>(PATH)).body.data.length, 1);
  });

  test('an administrator makes one, and a key of theirs with the scope', async () => {
    const owner = await api.person();
    const admin = await api.person({ org_id: owner.org_id, role: 'admin' });
    const { key } = await makeKey(api.db, admin, 'webhooks:write');
    for (const who of [admin, key]) assert.equal((await api.as(who).post(PATH, BODY)).status, 201);
  });
});

describe('200', () => {
  test('lists page through, newest first, at most 200 at a time', async () => {
    const owner = await api.person();
    const made = [];
    for (const name of ['a', 'b', 'c']) made.unshift((await makeWebhook(api, owner, URL, { name })).id);
    const first = await api.as(owner).get<Page<WebhookOut>>(`${PATH}?limit=2`);
    const rest = await api
      .as(owner)
      .get<Page<WebhookOut>>(`${PATH}?cursor=${first.body.next_cursor}&limit=200`);
    assert.deepEqual(
      [...first.body.data, ...rest.body.data].map(({ id }) => id),
      made,
    );
  });

  test('any member reads, and a service account with the scope', async () => {
    const owner = await api.person();
    const { id } = await makeWebhook(api, owner, URL);
    const member = await api.person({ org_id: owner.org_id, role: 'member' });
    const { key } = await makeServiceKey(api.db, owner.org_id, 'webhooks:read');
    for (const who of [member, key]) {
      assert.equal((await api.as(who).get(PATH)).status, 200);
      assert.equal((await api.as(who).get(`${PATH}/${id}`)).status, 200);
    }
  });

  test('a change changes the given fields only, and returns the new state', async () => {
    const owner = await api.person();
    const { id, secret, ...before } = await makeWebhook(api, owner, URL);
    const change = { name: 'other', events: ['*'] };
    const changed = await api.as(owner).patch<WebhookOut>(`${PATH}/${id}`, change);
    assert.equal(changed.status, 200, changed.text);
    const { body, headers } = await api.as(owner).get<WebhookOut>(`${PATH}/${id}`);
    assert.deepEqual(body, changed.body);
    assert.equal(headers['etag'], changed.headers['etag']);
    const { updated_at: _, ...rest } = body as WebhookOut & { updated_at: string };
    const { updated_at: __, ...was } = before as WebhookOut & { updated_at: string };
    assert.deepEqual(rest, { ...was, id, ...change });
    assert.ok(secret);
  });

  test('disabled and enabled by hand, with an event', async () => {
    const owner = await api.person();
    const { id } = await makeWebhook(api, owner, URL);
    const disabled = await api.as(owner).patch<WebhookOut>(`${PATH}/${id}`, { status: 'disabled' });
    assert.equal(disabled.body.disabled_reason, 'requested');
    await api.as(owner).patch(`${PATH}/${id}`, { status: 'disabled' });
    const enabled = await api.as(owner).patch<WebhookOut>(`${PATH}/${id}`, { status: 'enabled' });
    assert.deepEqual([enabled.body.status, enabled.body.disabled_reason], ['enabled', null]);
    const events = await api.db
      .selectFrom('events')
      .select(['type', 'actor', 'data'])
      .where('org_id', '=', owner.org_id)
      .execute();
    assert.deepEqual(
      events.map(({ type, actor }) => ({ type, actor })),
      [{ type: 'webhook.disabled', actor: owner.user_id }],
    );
    assert.equal((events[0]?.data as { webhook: WebhookOut } | undefined)?.webhook.id, id);
  });

  test('a rotation shows a new secret once', async () => {
    const owner = await api.person();
    const { id, secret } = await makeWebhook(api, owner, URL);
    const rotated = await api
      .as(owner)
      .post<MadeWebhook>(`${PATH}/${id}/rotate-secret`, { grace_seconds: 60 });
    assert.equal(rotated.status, 200, rotated.text);
    assert.equal(rotated.headers['cache-control'], 'no-store');
    assert.notEqual(rotated.body.secret, secret);
    const left_ms = Date.parse(rotated.body.previous_secret_expires_at ?? '') - Date.now();
    assert.ok(left_ms > 0 && left_ms <= 61_000);
  });
});

describe('204', () => {
  test('a deleted webhook is gone for everybody at once', async () => {
    const owner = await api.person();
    const { id } = await makeWebhook(api, owner, URL);
    const deleted = await api.as(owner).delete(`${PATH}/${id}`);
    assert.equal(deleted.status, 204);
    for (const route of ROUTES.slice(2)) assertError(await call(owner, route, id), 'NOT_FOUND');
    assert.deepEqual((await api.as(owner).get<Page<WebhookOut>>(PATH)).body.data, []);
  });
});

describe('400', () => {
  const urls = [
    ...[
      '',
      'nonsense',
      'ftp://example.org/',
      'https://',
      'https://user@example.org/',
      'https://u:p@example.org/',
    ],
    ...['https://10.0.0.1/', 'https://169.254.169.254/', 'https://0x0a000001/', 'http://192.168.1.1/'],
    `https://example.org/${'x'.repeat(2048)}`,
  ];
  const events = [[], ['vm.exploded'], ['vm.started', 'vm.started'], 'vm.started', [1], ['account.locked']];
  const names = ['', 'x'.repeat(101), 'a\nb', 1, null];

  test('bad URLs, events and names, with the field in the details', async () => {
    const owner = await api.person();
    const { id } = await makeWebhook(api, owner, URL);
    const bad = [
      ...urls.map((url) => ({ url })),
      ...events.map((each) => ({ events: each })),
      ...names.map((name) => ({ name })),
    ];
    for (const change of bad) {
      for (const answer of [
        await api.as(owner).post(PATH, { ...BODY, ...change }),
        await api.as(owner).patch(`${PATH}/${id}`, change),
      ]) {
        const { details } = assertError(answer, 'INVALID_REQUEST');
        assert.equal(details?.[0]?.field.split('.')[0], Object.keys(change)[0], answer.text);
      }
    }
  });

  test('missing and unknown fields, bad pages, filters and times', async () => {
    const owner = await api.person();
    const { id } = await makeWebhook(api, owner, URL);
    for (const field of ['name', 'url', 'events']) {
      assertError(await api.as(owner).post(PATH, { ...BODY, [field]: undefined }), 'INVALID_REQUEST');
    }
    assertError(await api.as(owner).post(PATH, { ...BODY, secret: 'whsec_x' }), 'INVALID_REQUEST');
    for (const query of ['limit=0', 'limit=201', 'cursor=x', 'name=x']) {
      assertError(await api.as(owner).get(`${PATH}?${query}`), 'INVALID_REQUEST');
    }
    for (const query of ['limit=201', 'status=lost', 'cursor=x']) {
      assertError(await api.as(owner).get(`${PATH}/${id}/deliveries?${query}`), 'INVALID_REQUEST');
    }
    const long_ago = new Date(Date.now() - 28 * 86_400_000).toISOString();
    for (const since of [long_ago, 'yesterday', '2026-01-15', '2026-13-45T00:00:00Z', 5, undefined]) {
      assertError(await api.as(owner).post(`${PATH}/${id}/replay`, { since }), 'INVALID_REQUEST');
    }
    for (const grace_seconds of [-1, 604_801, 1.5, '1']) {
      const answer = await api.as(owner).post(`${PATH}/${id}/rotate-secret`, { grace_seconds });
      assertError(answer, 'INVALID_REQUEST');
    }
  });
});

describe('401', () => {
  test('on every route, in the spelling of these routes', async () => {
    for (const route of ROUTES) {
      assertError(await call(undefined, route, newId('wh')), 'Unauthenticated');
      assertError(await call('berth_sess_nonsense', route, newId('wh')), 'Unauthenticated');
    }
  });
});

describe('403', () => {
  test('members, billing, service accounts and weak keys write nothing and see no deliveries', async () => {
    const owner = await api.person();
    const { id } = await makeWebhook(api, owner, URL);
    const member = await api.person({ org_id: owner.org_id, role: 'member' });
    const billing = await api.person({ org_id: owner.org_id, role: 'billing' });
    const { key: robot } = await makeServiceKey(api.db, owner.org_id, '*');
    const { key: weak } = await makeKey(api.db, owner, 'instances:read');
    const writes = ROUTES.filter(([method, path]) => method !== 'GET' || path.endsWith('deliveries'));
    for (const who of [member, billing, robot, weak]) {
      for (const route of writes) assertError(await call(who, route, id), 'FORBIDDEN');
      // Before any other error.
      assertError(await api.as(who).post(PATH, { nonsense: true }), 'FORBIDDEN');
    }
    assert.equal((await api.as(owner).get(`${PATH}/${id}`)).status, 200);
  });

  test('a caller who is removed or demoted while the name is looked up creates and changes nothing', async (t) => {
    const owner = await api.person();
    const { id } = await makeWebhook(api, owner, URL);
    const { outbound } = api.context.webhooks;
    const checkUrl = outbound.checkUrl.bind(outbound);
    const member = (who: Person) => `/v1/orgs/${owner.org_id}/members/${who.user_id}`;
    const ends = {
      removed: (who: Person) => api.as(owner).delete(member(who)),
      demoted: (who: Person) => api.as(owner).patch(member(who), { role: 'member' }),
    };
    for (const end of Object.values(ends)) {
      for (const ask of [
        (who: Person) => api.as(who).post(PATH, BODY),
        (who: Person) => api.as(who).patch(`${PATH}/${id}`, { url: 'http://127.0.0.1:9/theirs' }),
      ]) {
        const admin = await api.person({ org_id: owner.org_id, role: 'admin' });
        const asked = t.mock.method(outbound, 'checkUrl', async (url: string) => {
          assert.ok((await end(admin)).status < 300);
          return checkUrl(url);
        });
        assertError(await ask(admin), 'FORBIDDEN');
        assert.equal(asked.mock.callCount(), 1);
        asked.mock.restore();
      }
    }
    const { body } = await api.as(owner).get<Page<WebhookOut>>(PATH);
    assert.deepEqual(
      body.data.map(({ url }) => url),
      [URL],
    );
  });
});

describe('404', () => {
  test('a webhook of another organisation, an unknown id and a malformed id get the same answer', async () => {
    const owner = await api.person();
    const theirs = await makeWebhook(api, await api.person(), URL);
    for (const route of ROUTES.slice(2)) {
      const none = await call(owner, route, newId('wh'));
      assertError(none, 'NOT_FOUND');
      for (const id of [theirs.id, 'nonsense', newId('ak')]) {
        assert.deepEqual(withoutRequestId(await call(owner, route, id)), withoutRequestId(none));
      }
    }
  });
});

describe('409', () => {
  test('a disabled webhook refuses ping, redelivery and replay', async () => {
    const owner = await api.person();
    const { id } = await makeWebhook(api, owner, URL);
    await api.as(owner).patch(`${PATH}/${id}`, { status: 'disabled' });
    assertError(await api.as(owner).post(`${PATH}/${id}/ping`), 'CONFLICT', /disabled/);
    assertError(await api.as(owner).post(`${PATH}/${id}/replay`, { since: SINCE }), 'CONFLICT', /disabled/);
    const redeliver = `${PATH}/${id}/deliveries/${newId('whd')}/redeliver`;
    assertError(await api.as(owner).post(redeliver), 'CONFLICT', /disabled/);
  });
});

describe('422', () => {
  test('the same Idempotency-Key for another webhook', async () => {
    const owner = await api.person();
    const headers = { 'idempotency-key': 'twice' };
    assert.equal((await api.as(owner).post(PATH, BODY, { headers })).status, 201);
    const other = await api.as(owner).post(PATH, { ...BODY, name: 'other' }, { headers });
    assertError(other, 'IDEMPOTENCY_KEY_REUSED');
  });
});

describe('429', () => {
  test('concurrent requests do not exceed the quota', async () => {
    const owner = await api.person();
    await setQuota(api.db, owner.org_id, { webhooks: 20 });
    const made = await Promise.all(Array.from({ length: 25 }, () => api.as(owner).post(PATH, BODY)));
    const refused = made.filter(({ status }) => status !== 201);
    assert.equal(refused.length, 5);
    for (const answer of refused) assertError(answer, 'QUOTA_EXCEEDED', /quota of webhooks is 20: 20 used/);
    const { body } = await api.as(owner).get<Page<WebhookOut>>(`${PATH}?limit=1`);
    await api.as(owner).delete(`${PATH}/${body.data[0]?.id}`);
    assert.equal((await api.as(owner).post(PATH, BODY)).status, 201);
  });
});

sendWebhooks(api);

function verifies(secret: string, { body, headers }: Got): boolean {
  try {
    new Webhook(secret).verify(body, headers);
    return true;
  } catch {
    return false;
  }
}

describe('the signature', () => {
  test("is the specification's published one for its published message", () => {
    // https://github.com/standard-webhooks/standard-webhooks, spec/standard-webhooks.md and the libraries' tests.
    const key = signingKey('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw');
    assert.equal(
      signature([key], 'msg_p5jXN8AQM9LWM0D4loKWxJek', 1614265330, '{"test": 2432232314}'),
      'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=',
    );
  });

  test('is verified by the standardwebhooks package, and is not that of another secret, body, id or time', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const { secret } = await makeWebhook(api, owner, receiver.url);
    const id = await happen(api, owner.org_id, 1);
    const [got] = await receiver.has(1);
    assert.ok(got);
    assert.equal(got.id, id);
    assert.match(secret, /^whsec_[A-Za-z0-9+/]{43}=$/);
    assert.ok(verifies(secret, got));
    assert.ok(!verifies('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', got));
    assert.ok(!verifies(secret, { ...got, body: got.body.replace('"n":1', '"n":2') }));
    assert.ok(!verifies(secret, { ...got, headers: { ...got.headers, 'webhook-id': 'evt_other' } }));
    const later = String(Number(got.headers['webhook-timestamp']) + 1);
    assert.ok(!verifies(secret, { ...got, headers: { ...got.headers, 'webhook-timestamp': later } }));
  });

  test('the body is type, timestamp and data with org_id, actor and sequence', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const webhook = await makeWebhook(api, owner, receiver.url, { events: ['instance.created'] });
    const instance = await api.instance(owner);
    const [got] = await receiver.has(1);
    assert.ok(got);
    assert.equal(got.headers['content-type'], 'application/json');
    const { type, timestamp, data } = got.event;
    assert.equal(type, 'instance.created');
    assert.ok(Math.abs(Date.parse(timestamp) - Date.now()) < 60_000);
    assert.equal((data['instance'] as { id: string }).id, instance.id);
    assert.equal(data['org_id'], owner.org_id);
    assert.equal(data['actor'], owner.user_id);
    assert.equal(data['sequence'], 1);
    const [delivery] = await deliveriesOf(api, owner, webhook);
    assert.equal(delivery?.event_id, got.id);
  });
});

describe('a rotation', () => {
  test('signs with both secrets until the grace period ends, then with the new one only', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const { id, secret: before } = await makeWebhook(api, owner, receiver.url);
    const rotate = `/v1/webhooks/${id}/rotate-secret`;
    const { body } = await api.as(owner).post<{ secret: string }>(rotate, { grace_seconds: 3_600 });
    await happen(api, owner.org_id, 1);
    const [overlapping] = await receiver.has(1);
    assert.ok(overlapping && verifies(before, overlapping) && verifies(body.secret, overlapping));
    assert.equal(overlapping.headers['webhook-signature']?.split(' ').length, 2);
    await api.db
      .updateTable('webhooks')
      .set({ previous_expires_at: new Date(Date.now() - 1_000) })
      .where('id', '=', id)
      .execute();
    await happen(api, owner.org_id, 2);
    const [, after] = await receiver.has(2);
    assert.ok(after && !verifies(before, after) && verifies(body.secret, after));
  });

  test('without a grace period ends the present secret at once, and a second rotation ends the first secret', async () => {
    const owner = await api.person();
    const receiver = await startRecorder();
    const { id, secret: first } = await makeWebhook(api, owner, receiver.url);
    const rotate = `/v1/webhooks/${id}/rotate-secret`;
    const second = (await api.as(owner).post<{ secret: string }>(rotate)).body.secret;
    const third = (await api.as(owner).post<{ secret: string }>(rotate)).body.secret;
    await happen(api, owner.org_id, 1);
    const [twice] = await receiver.has(1);
    assert.ok(twice && !verifies(first, twice) && verifies(second, twice) && verifies(third, twice));
    const fourth = (await api.as(owner).post<{ secret: string }>(rotate, { grace_seconds: 0 })).body.secret;
    await happen(api, owner.org_id, 2);
    const [, at_once] = await receiver.has(2);
    assert.ok(at_once && !verifies(third, at_once) && verifies(fourth, at_once));
  });
});
