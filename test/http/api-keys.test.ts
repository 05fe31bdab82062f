/** API keys: made within their maker's own authority, shown once, gone at once. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { newId } from '../../src/lib/ids.ts';
import { apiForFile } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { makeKey } from '../support/people.ts';

const api = await apiForFile();
const owner = await api.person();
const KEYS = '/v1/api-keys';

interface ApiKeyOut {
  readonly id: string;
  readonly name: string;
  readonly scope: string;
  readonly prefix: string;
  readonly last4: string;
  readonly created_at: string;
  readonly last_used_at: string | null;
  readonly expires_at: string | null;
}
type NewKeyOut = ApiKeyOut & { readonly key: string };

function create(token: string, body: unknown) {
  return api.as(token).post<NewKeyOut>(KEYS, body);
}

describe('201', () => {
  test('the plain key is in this answer, which nobody may store, and nowhere else', async () => {
    const made = await create(owner.session, { name: 'ci', scope: 'vm:write instances:read' });
    assert.equal(made.status, 201, made.text);
    assert.equal(made.headers['cache-control'], 'no-store');
    const { key, ...shown } = made.body;
    assert.match(key, /^berth_live_[0-9A-Za-z]{49}$/);
    assert.equal(shown.scope, 'instances:read vm:write', 'in one order');
    assert.deepEqual([key.startsWith(shown.prefix), key.slice(-4)], [true, shown.last4]);
    assert.deepEqual([shown.expires_at, shown.last_used_at], [null, null]);
    assert.deepEqual((await api.as(owner).get<ApiKeyOut>(`${KEYS}/${shown.id}`)).body, shown);
    const list = await api.as(owner).get<Page<ApiKeyOut>>(KEYS);
    assert.deepEqual(list.body.data[0], shown);
    for (const table of ['api_keys', 'events'] as const) {
      const rows = await api.db.selectFrom(table).selectAll().execute();
      assert.ok(!JSON.stringify(rows).includes(key.slice(11)), table);
    }
  });

  test('it works at once, within its scope', async () => {
    const { key } = (await create(owner.session, { name: 'reader', scope: 'instances:read' })).body;
    assert.equal((await api.as(key).get('/v1/instances')).status, 200);
    assertError(await api.as(key).post('/v1/instances', { name: 'a' }), 'FORBIDDEN', /instances:write/);
  });

  test('an expiry is kept, and the key is dead after it', async () => {
    const made = await create(owner.session, { name: 'short', scope: '*', expires_in_seconds: 60 });
    const left_ms = Date.parse(made.body.expires_at ?? '') - Date.now();
    assert.ok(left_ms > 50_000 && left_ms <= 60_000);
    assert.equal((await api.as(made.body.key).get('/v1/instances')).status, 200);
    await api.db
      .updateTable('api_keys')
      .set({ expires_at: new Date(Date.now() - 1) })
      .where('id', '=', made.body.id as never)
      .execute();
    assertError(await api.as(made.body.key).get('/v1/instances'), 'UNAUTHENTICATED');
  });

  test('a key may make keys within its own scope', async () => {
    const { key } = await makeKey(api.db, owner, 'api_keys:write vm:read');
    assert.equal((await create(key, { name: 'less', scope: 'vm:read' })).status, 201);
    assert.equal(
      (await create((await makeKey(api.db, owner, '*')).key, { name: 'all', scope: '*' })).status,
      201,
    );
  });

  test('use is noted, at most once a minute', async () => {
    const { id, key } = await makeKey(api.db, owner, '*');
    const used = async () => {
      await api.as(key).get('/v1/instances');
      return (await api.as(owner).get<ApiKeyOut>(`${KEYS}/${id}`)).body.last_used_at;
    };
    const first = await used();
    assert.ok(first);
    assert.equal(await used(), first);
    const long_ago = new Date(Date.now() - 61_000);
    await api.db.updateTable('api_keys').set({ last_used_at: long_ago }).where('id', '=', id).execute();
    assert.notEqual(await used(), long_ago.toISOString());
  });
});

describe('204', () => {
  test('a revoked key is dead at once', async () => {
    const { id, key } = await makeKey(api.db, owner, '*');
    assert.equal((await api.as(key).get('/v1/instances')).status, 200);
    const answer = await api.as(owner).delete(`${KEYS}/${id}`);
    assert.deepEqual([answer.status, answer.text], [204, '']);
    assertError(await api.as(key).get('/v1/instances'), 'UNAUTHENTICATED');
    assertError(await api.as(owner).get(`${KEYS}/${id}`), 'NOT_FOUND');
  });
});

describe('400', () => {
  const bodies: Record<string, unknown> = {
    'no body': undefined,
    'no scope': { name: 'a' },
    'no name': { scope: '*' },
    'an empty scope': { name: 'a', scope: '' },
    'a scope that is none': { name: 'a', scope: 'instances:delete' },
    'two spaces': { name: 'a', scope: 'vm:read  vm:write' },
    'a star among others': { name: 'a', scope: '* vm:read' },
    'a list of scopes': { name: 'a', scope: ['vm:read'] },
    'an expiry of 59 seconds': { name: 'a', scope: '*', expires_in_seconds: 59 },
    'an expiry that is text': { name: 'a', scope: '*', expires_in_seconds: '60' },
    'an unknown field': { name: 'a', scope: '*', key: 'berth_live_x' },
  };
  for (const [what, body] of Object.entries(bodies)) {
    test(`POST with ${what}`, async () => {
      assertError(await create(owner.session, body), 'INVALID_REQUEST');
    });
  }
  test('unknown query parameters', async () => {
    const { id } = await makeKey(api.db, owner, '*');
    assertError(await api.as(owner).get(`${KEYS}?q=1`), 'INVALID_REQUEST', /q/);
    assertError(await api.as(owner).get(`${KEYS}/${id}?q=1`), 'INVALID_REQUEST', /q/);
    assertError(await api.as(owner).delete(`${KEYS}/${id}?q=1`), 'INVALID_REQUEST', /q/);
  });
});

describe('403', () => {
  const beyond: readonly (readonly [string, string])[] = [
    ['api_keys:write', 'vm:read'],
    ['api_keys:write vm:write', 'vm:read'],
    ['api_keys:write vm:read', '*'],
  ];
  for (const [own, wanted] of beyond) {
    test(`a key with "${own}" makes none with "${wanted}"`, async () => {
      const { key } = await makeKey(api.db, owner, own);
      assertError(await create(key, { name: 'more', scope: wanted }), 'FORBIDDEN', /exceeds/);
    });
  }
  test('nobody gives a key more than the role has now', async () => {
    const member = await api.person({ org_id: owner.org_id, role: 'member' });
    assertError(await create(member.session, { name: 'a', scope: 'audit:read' }), 'FORBIDDEN');
    const made = await create(member.session, { name: 'a', scope: '*' });
    assert.equal(made.status, 201);
    await api.db
      .updateTable('memberships')
      .set({ role: 'billing' })
      .where('user_id', '=', member.user_id)
      .execute();
    assertError(await api.as(made.body.key).post('/v1/instances', { name: 'b' }), 'FORBIDDEN');
  });
});

describe('404', () => {
  test("another's key, in the same organisation or not, is the same as one that never was", async () => {
    const colleague = await api.person({ org_id: owner.org_id, role: 'admin' });
    const stranger = await api.person();
    for (const method of ['GET', 'DELETE'] as const) {
      const none = await api.as(owner).call(method, `${KEYS}/${newId('ak')}`);
      assertError(none, 'NOT_FOUND');
      for (const who of [colleague, stranger]) {
        const { id, key } = await makeKey(api.db, who, '*');
        const answer = await api.as(owner).call(method, `${KEYS}/${id}`);
        assert.deepEqual(withoutRequestId(answer), withoutRequestId(none));
        assert.equal((await api.as(key).get('/v1/instances')).status, 200);
      }
      for (const id of ['x', newId('key'), 'ak_']) {
        const answer = await api.as(owner).call(method, `${KEYS}/${id}`);
        assert.deepEqual(withoutRequestId(answer), withoutRequestId(none));
      }
    }
  });
});
