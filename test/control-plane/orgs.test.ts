/** Organisations: /v1/orgs, one describe a status. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setQuota } from '../../src/control-plane/organisations/quotas.ts';
import { type ApiKeyId, newId, type OrgId } from '../../src/shared/ids.ts';
import { accessApiForFile, auditOf, makeInstance } from '../support/access-api.ts';
import type { Page } from '../support/client.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';

const api = await accessApiForFile();
const { db } = api;

interface Org {
  readonly id: OrgId;
  readonly name: string;
  readonly billing_email: string;
  readonly created_at: string;
}

describe('200', () => {
  test('a list has the organisations of the caller and no others, newest first, page by page', async () => {
    const ann = await api.member();
    await api.member();
    const made: string[] = [ann.org_id];
    for (const name of ['one', 'two', 'three']) {
      const answer = await api.as(ann).post<Org>('/v1/orgs', { name });
      made.unshift(answer.body.id);
    }
    const first = await api.as(ann).get<Page<Org>>('/v1/orgs?limit=3');
    const rest = await api.as(ann).get<Page<Org>>(`/v1/orgs?limit=3&cursor=${first.body.next_cursor}`);
    const ids = [...first.body.data, ...rest.body.data].map((org) => org.id);
    assert.deepEqual(ids, [...made].sort().reverse());
    assert.equal(rest.body.next_cursor, null);
  });

  test('a session acts by default in the last of the list, also when an older organisation was joined later', async () => {
    const older = await api.member();
    const ann = await api.member();
    await db
      .insertInto('memberships')
      .values({ org_id: older.org_id, user_id: ann.user_id, role: 'member' })
      .execute();
    const ids: string[] = [];
    for (let cursor = ''; ; ) {
      const { body } = await api.as(ann).get<Page<Org>>(`/v1/orgs?limit=1${cursor}`);
      ids.push(...body.data.map(({ id }) => id));
      if (body.next_cursor === null) break;
      cursor = `&cursor=${body.next_cursor}`;
    }
    assert.deepEqual(ids, [older.org_id, ann.org_id]);
    const made = await api.as(ann).post<{ id: string }>('/v1/api-keys', { name: 'here', scope: 'org:read' });
    const key = await db
      .selectFrom('api_keys')
      .select('org_id')
      .where('id', '=', made.body.id as ApiKeyId)
      .executeTakeFirstOrThrow();
    assert.equal(key.org_id, ids.at(-1));
  });

  test('any member reads the organisation of the path, whatever Berth-Org says', async () => {
    const owner = await api.member();
    for (const role of ['admin', 'member', 'billing'] as const) {
      const member = await api.member();
      await db
        .insertInto('memberships')
        .values({ org_id: owner.org_id, user_id: member.user_id, role })
        .execute();
      for (const headers of [{}, { 'berth-org': member.org_id }, { 'berth-org': owner.org_id }]) {
        const answer = await api.as(member).get<Org>(`/v1/orgs/${owner.org_id}`, { headers });
        assert.equal(answer.status, 200, answer.text);
        assert.deepEqual(Object.keys(answer.body), ['id', 'name', 'billing_email', 'created_at', 'operator']);
        assert.equal(answer.body.id, owner.org_id);
      }
    }
  });

  test('keys with org:read read their own organisation and its quota, a service account too', async () => {
    const owner = await api.member();
    const service_account_id = await api.serviceAccount(owner.org_id, 'org:read');
    for (const holder of [owner, { org_id: owner.org_id, service_account_id }]) {
      const { key } = await api.key(
        'session' in holder ? { org_id: holder.org_id, user_id: holder.user_id } : holder,
        'org:read',
      );
      for (const path of ['', '/quota']) {
        const answer = await api.as(key).get(`/v1/orgs/${owner.org_id}${path}`);
        assert.equal(answer.status, 200, answer.text);
      }
    }
  });

  test('an owner and an administrator rename it, with an audit entry in that organisation', async () => {
    const owner = await api.member();
    const admin = await api.member();
    await db
      .insertInto('memberships')
      .values({ org_id: owner.org_id, user_id: admin.user_id, role: 'admin' })
      .execute();
    for (const [who, name] of [
      [owner, 'Ours'],
      [admin, 'Theirs'],
    ] as const) {
      const answer = await api.as(who).patch<Org>(`/v1/orgs/${owner.org_id}`, { name });
      assert.equal(answer.status, 200, answer.text);
      assert.equal(answer.body.name, name);
    }
    const same = await api.as(owner).patch<Org>(`/v1/orgs/${owner.org_id}`, {});
    assert.equal(same.body.name, 'Theirs');
    const entries = await auditOf(db, owner.org_id);
    assert.deepEqual(
      entries.map((entry) => [entry.action, entry.actor]),
      [
        ['org.change', owner.user_id],
        ['org.change', admin.user_id],
      ],
    );
    assert.deepEqual(await auditOf(db, admin.org_id), []);
  });

  test('a change of the billing address is mailed to both addresses', async () => {
    const owner = await api.member();
    const billing = await api.member({ org_id: owner.org_id, role: 'billing' });
    const before = api.mails.length;
    const answer = await api.as(billing).call<Org>('PUT', `/v1/orgs/${owner.org_id}/billing-email`, {
      json: { email: 'Bills@example.org' },
      headers: await api.sudo(billing),
    });
    assert.equal(answer.status, 200, answer.text);
    assert.equal(answer.body.billing_email, 'Bills@example.org');
    assert.deepEqual(
      api.mails.slice(before).map((mail) => mail.to),
      [owner.email, 'Bills@example.org'],
    );
    const again = await api.as(owner).call<Org>('PUT', `/v1/orgs/${owner.org_id}/billing-email`, {
      json: { email: 'Bills@example.org' },
      headers: await api.sudo(owner),
    });
    assert.equal(again.status, 200);
    assert.equal(api.mails.length, before + 2, 'no change, no mail');
  });

  test('the quota shows limits and what is used', async () => {
    const owner = await api.member();
    await makeInstance(db, owner.org_id);
    const service_account_id = await api.serviceAccount(owner.org_id, 'org:read');
    await api.key({ org_id: owner.org_id, service_account_id }, 'org:read');
    await setQuota(db, owner.org_id, { instances: 3, cpus: null, memory_mib: 1 });
    await setQuota(db, owner.org_id, { memory_mib: 'default' });
    const answer = await api.as(owner).get<unknown>(`/v1/orgs/${owner.org_id}/quota`);
    assert.deepEqual(answer.body, {
      instances: { limit: 3, source: 'set', used: 1 },
      cpus: { limit: null, source: 'set', used: 0 },
      memory_mib: { limit: null, source: 'default', used: 0 },
      disk_gib: { limit: null, source: 'default', used: 10 },
      api_keys: { limit: null, source: 'default', used: 1 },
      service_accounts: { limit: null, source: 'default', used: 1 },
      webhooks: { limit: null, source: 'default', used: 0 },
      streams: { limit: null, source: 'default', used: 0 },
    });
  });
});

describe('201', () => {
  test('the creator of an organisation owns it and can act in it at once', async () => {
    const ann = await api.member({ role: 'member', org_id: (await api.member()).org_id });
    const answer = await api.as(ann).post<Org>('/v1/orgs', { name: 'Mine' });
    assert.equal(answer.status, 201, answer.text);
    assert.equal(answer.body.billing_email, ann.email);
    const renamed = await api.as(ann).patch<Org>(`/v1/orgs/${answer.body.id}`, { name: 'My own' });
    assert.equal(renamed.status, 200, renamed.text);
    assert.deepEqual(
      (await auditOf(db, answer.body.id)).map((entry) => entry.action),
      ['org.create', 'org.change'],
    );
  });

  test('a replayed Idempotency-Key creates no second one', async () => {
    const ann = await api.member();
    const headers = { 'idempotency-key': 'once' };
    const first = await api.as(ann).post<Org>('/v1/orgs', { name: 'Mine' }, { headers });
    const second = await api.as(ann).post<Org>('/v1/orgs', { name: 'Mine' }, { headers });
    assert.deepEqual(second.body, first.body);
    assert.equal(second.headers['idempotency-replayed'], 'true');
    const list = await api.as(ann).get<Page<Org>>('/v1/orgs');
    assert.equal(list.body.data.length, 2);
  });
});

describe('400', () => {
  test('bad names, unknown fields, bad addresses, bad pages', async () => {
    const ann = await api.member();
    const bodies = [
      {},
      { name: '' },
      { name: 'x'.repeat(101) },
      { name: 'a\nb' },
      { name: 1 },
      { name: 'a', b: 1 },
    ];
    for (const body of bodies) assertError(await api.as(ann).post('/v1/orgs', body), 'INVALID_REQUEST');
    assertError(
      await api.as(ann).patch(`/v1/orgs/${ann.org_id}`, { billing_email: 'a@b' }),
      'INVALID_REQUEST',
    );
    const headers = await api.sudo(ann);
    for (const json of [{}, { email: 'nobody' }, { email: 'a@b', name: 'x' }]) {
      const path = `/v1/orgs/${ann.org_id}/billing-email`;
      assertError(await api.as(ann).call('PUT', path, { json, headers }), 'INVALID_REQUEST');
    }
    for (const query of ['limit=0', 'limit=201', 'limit=x', 'cursor=x', 'colour=red']) {
      assertError(await api.as(ann).get(`/v1/orgs?${query}`), 'INVALID_REQUEST');
    }
    assertError(await api.as(ann).get(`/v1/orgs/${ann.org_id}?full=1`), 'INVALID_REQUEST');
  });
});

describe('401', () => {
  test('no credential', async () => {
    for (const [method, path] of [
      ['GET', '/v1/orgs'],
      ['POST', '/v1/orgs'],
      ['GET', `/v1/orgs/${newId('org')}`],
      ['PATCH', `/v1/orgs/${newId('org')}`],
      ['GET', `/v1/orgs/${newId('org')}/quota`],
      ['PUT', `/v1/orgs/${newId('org')}/billing-email`],
    ] as const) {
      assertError(await api.client.call(method, path), 'UNAUTHENTICATED');
    }
  });
});

describe('403 FORBIDDEN', () => {
  test('members and billing rename nothing, members change no billing address; before the body is looked at', async () => {
    const owner = await api.member();
    const path = `/v1/orgs/${owner.org_id}`;
    for (const role of ['member', 'billing'] as const) {
      const who = await api.member({ org_id: owner.org_id, role });
      assertError(await api.as(who).patch(path, { nonsense: true }), 'FORBIDDEN');
    }
    const member = await api.member({ org_id: owner.org_id, role: 'member' });
    const headers = await api.sudo(member);
    assertError(
      await api.as(member).call('PUT', `${path}/billing-email`, { json: {}, headers }),
      'FORBIDDEN',
    );
  });

  test('keys neither list nor create organisations, nor change the billing address; those without the scope read nothing', async () => {
    const owner = await api.member();
    const all = await api.key({ org_id: owner.org_id, user_id: owner.user_id }, '*');
    const none = await api.key({ org_id: owner.org_id, user_id: owner.user_id }, 'vm:read');
    const path = `/v1/orgs/${owner.org_id}`;
    assertError(await api.as(all.key).get('/v1/orgs'), 'FORBIDDEN');
    assertError(await api.as(all.key).post('/v1/orgs', { name: 'x' }), 'FORBIDDEN');
    assertError(await api.as(all.key).put(`${path}/billing-email`, { email: 'a@b' }), 'FORBIDDEN');
    for (const each of [path, `${path}/quota`, `/v1/orgs/${newId('org')}`]) {
      assertError(await api.as(none.key).get(each), 'FORBIDDEN');
    }
  });

  test('a service account has no role, so it renames nothing', async () => {
    const owner = await api.member();
    const service_account_id = await api.serviceAccount(owner.org_id, '*');
    const { key } = await api.key({ org_id: owner.org_id, service_account_id }, '*');
    assertError(await api.as(key).patch(`/v1/orgs/${owner.org_id}`, { name: 'x' }), 'FORBIDDEN');
  });
});

describe('403 SUDO_REQUIRED', () => {
  test('the billing address needs a sudo grant of this session', async () => {
    const owner = await api.member();
    const other = await api.member({ org_id: owner.org_id });
    const path = `/v1/orgs/${owner.org_id}/billing-email`;
    for (const headers of [{}, await api.sudo(other)]) {
      const answer = await api.as(owner).call('PUT', path, { json: { email: 'a@b' }, headers });
      assertError(answer, 'SUDO_REQUIRED');
    }
  });
});

describe('404', () => {
  test('another organisation, an unknown one and a malformed id get the same answer', async () => {
    const ann = await api.member();
    const bob = await api.member();
    const key = await api.key({ org_id: ann.org_id, user_id: ann.user_id }, '*');
    const headers = await api.sudo(ann);
    for (const who of [ann, key.key]) {
      const calls = [bob.org_id, newId('org'), 'nonsense'].map((id) => api.as(who).get(`/v1/orgs/${id}`));
      const answers = await Promise.all(calls);
      assertError(answers[0] ?? assert.fail(), 'NOT_FOUND');
      assert.deepEqual(
        withoutRequestId(answers[1] ?? assert.fail()),
        withoutRequestId(answers[0] ?? assert.fail()),
      );
      assert.deepEqual(
        withoutRequestId(answers[2] ?? assert.fail()),
        withoutRequestId(answers[0] ?? assert.fail()),
      );
      assertError(await api.as(who).get(`/v1/orgs/${bob.org_id}/quota`), 'NOT_FOUND');
      assertError(await api.as(who).patch(`/v1/orgs/${bob.org_id}`, { name: 'x' }), 'NOT_FOUND');
    }
    const json = { email: 'a@b' };
    const path = `/v1/orgs/${bob.org_id}/billing-email`;
    assertError(await api.as(ann).call('PUT', path, { json, headers }), 'NOT_FOUND');
    assertError(await api.as(ann).call('PUT', path, { json: {}, headers }), 'INVALID_REQUEST');
  });
});

describe('412', () => {
  test('a change of an organisation that changed since it was read is refused', async () => {
    const ann = await api.member();
    const path = `/v1/orgs/${ann.org_id}`;
    const seen = (await api.as(ann).get(path)).headers['etag'] as string;
    const headers = { 'if-match': seen };
    const json = { name: 'first' };
    const first = await api.as(ann).call<Org>('PATCH', path, { json, headers });
    assert.equal(first.status, 200, first.text);
    assertError(
      await api.as(ann).call('PATCH', path, { json: { name: 'second' }, headers }),
      'PRECONDITION_FAILED',
    );
    const next = { 'if-match': first.headers['etag'] as string };
    assert.equal(
      (await api.as(ann).call('PATCH', path, { json: { name: 'third' }, headers: next })).status,
      200,
    );
  });
});
