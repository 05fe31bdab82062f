/**
 * API keys: /v1/api-keys and /v1/api-keys/:id/rotate, one describe a status; and which key made which:
 * DELETE /v1/api-keys/:id?descendants=true ends all that was made with a leaked one.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { crc32 } from 'node:zlib';
import { ALL_SCOPES, ROLE_SCOPES } from '../../src/control-plane/identity/permissions.ts';
import { hashToken } from '../../src/control-plane/identity/tokens.ts';
import { newId } from '../../src/shared/ids.ts';
import { accessApiForFile, auditOf, eventsOf } from '../support/access-api.ts';
import { apiKeyCalls, type Key, type MadeKey } from '../support/api-keys.ts';
import type { Answer, Page } from '../support/client.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { allBeforeAnyCommits } from '../support/lock-waits.ts';
import { type Person, randomPublicKey } from '../support/people.ts';

const api = await accessApiForFile();
const { db } = api;

const { make, rotate, works } = apiKeyCalls(api);

/** The checksum of the interface, written apart from the code under test. */
function checksumOf(random: string): string {
  const digits = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
  let rest = BigInt(crc32(random));
  let text = '';
  while (rest > 0n) {
    text = digits.charAt(Number(rest % 62n)) + text;
    rest /= 62n;
  }
  return text.padStart(6, '0');
}

describe('201', () => {
  test('a key is shown once, has a checksum, works, and is hashed at rest', async () => {
    const ann = await api.member();
    const answer = await api
      .as(ann)
      .post<MadeKey>('/v1/api-keys', { name: 'ci', scope: 'vm:read instances:read' });
    const { body } = answer;
    assert.equal(answer.status, 201);
    assert.equal(answer.headers['cache-control'], 'no-store');
    const [, random = '', checksum] = /^berth_live_([0-9A-Za-z]{43})([0-9A-Za-z]{6})$/.exec(body.key) ?? [];
    assert.equal(checksum, checksumOf(random));
    assert.equal(body.scope, 'instances:read vm:read', 'kept in one order');
    assert.ok(body.key.startsWith(body.prefix) && body.key.endsWith(body.last4));
    assert.equal(body.expires_at, null);
    assert.equal((await api.as(body.key).get('/v1/instances')).status, 200);
    const row = await db
      .selectFrom('api_keys')
      .selectAll()
      .where('id', '=', body.id)
      .executeTakeFirstOrThrow();
    assert.deepEqual(row.token_hash, hashToken(body.key));
    assert.ok(!JSON.stringify(row).includes(body.key));
    const { key: _, ...shown } = body;
    assert.deepEqual(await eventsOf(db, ann.org_id), [
      { type: 'api_key.created', data: { api_key: shown }, actor: ann.user_id },
    ]);
    const audit = await auditOf(db, ann.org_id);
    assert.deepEqual([audit[0]?.action, audit[0]?.target, audit.length], ['api_key.create', body.id, 1]);
    assert.ok(!JSON.stringify(audit).includes(random));
  });

  test('a key creates keys within its own scope, for its creator', async () => {
    const ann = await api.member({ role: 'member', org_id: (await api.member()).org_id });
    const first = await make(ann, { scope: 'api_keys:write vm:read vm:write' });
    const second = await make(first.key, { scope: 'vm:write' });
    assert.equal((await api.as(ann).get<Key>(`/v1/api-keys/${second.id}`)).status, 200);
  });

  test('a key with an expiry or networks creates keys with the same bounds, or narrower ones', async () => {
    const bounded = await make(await api.member(), {
      scope: 'api_keys:write',
      expires_in_seconds: 3_600,
      allowed_cidrs: ['127.0.0.0/8', '2001:db8::/32'],
    });
    const same = await make(bounded.key, { scope: 'api_keys:write' });
    assert.deepEqual([same.expires_at, same.allowed_cidrs], [bounded.expires_at, bounded.allowed_cidrs]);
    const allowed_cidrs = ['127.0.0.1/32', '2001:db8:1::/48'];
    const narrower = await make(same.key, { scope: 'api_keys:write', expires_in_seconds: 60, allowed_cidrs });
    assert.deepEqual(narrower.allowed_cidrs, allowed_cidrs);
    assert.ok(Date.parse(narrower.expires_at ?? '') < Date.parse(same.expires_at ?? ''));
  });

  test('a rotated key creates keys that end with its grace', async () => {
    const ann = await api.member();
    const old = await make(ann, { scope: 'api_keys:write' });
    const { body } = await rotate(ann, old.id, { grace_seconds: 600 });
    const made = await make(old.key, { scope: 'api_keys:write' });
    assert.equal(made.expires_at, body.previous_expires_at);
    assert.equal((await make(body.key, { scope: 'api_keys:write' })).expires_at, null);
  });

  test('one for a service account acts within its own and the service account’s scope', async () => {
    const ann = await api.member();
    const service_account_id = await api.serviceAccount(ann.org_id, 'vm:read instances:read');
    const made = await make(ann, { scope: 'instances:read', service_account_id });
    assert.equal(made.service_account_id, service_account_id);
    assert.equal((await api.as(made.key).get('/v1/instances')).status, 200);
    assertError(await api.as(made.key).get('/v1/me'), 'FORBIDDEN');
  });

  test('networks are stored in canonical form, and other addresses are refused', async () => {
    const ann = await api.member();
    const near = await make(ann, { allowed_cidrs: ['127.0.0.9/8', '127.0.0.1/8', '::1'] });
    assert.deepEqual(near.allowed_cidrs, ['127.0.0.0/8', '::1/128']);
    assert.ok(await works(near.key));
    const far = await make(ann, { allowed_cidrs: ['203.0.113.0/24'] });
    assert.ok(!(await works(far.key)));
  });

  test('a key expires', async () => {
    const ann = await api.member();
    const made = await make(ann, { expires_in_seconds: 60 });
    const lifetime_ms = Date.parse(made.expires_at ?? '') - Date.parse(made.created_at);
    assert.ok(Math.abs(lifetime_ms - 60_000) < 1_000);
    assert.ok(await works(made.key));
    await db
      .updateTable('api_keys')
      .set({ expires_at: new Date(Date.now() - 1) })
      .where('id', '=', made.id)
      .execute();
    assert.ok(!(await works(made.key)));
  });
});

describe('200', () => {
  test('a list has the caller’s own keys, newest first, never with the key; an owner’s also service accounts’', async () => {
    const owner = await api.member();
    const member = await api.member({ org_id: owner.org_id, role: 'member' });
    const service_account_id = await api.serviceAccount(owner.org_id, 'vm:read');
    const [a, b, c] = [await make(owner), await make(member), await make(owner, { service_account_id })];
    const ids = async (who: Person, query = '') => {
      const answer = await api.as(who).get<Page<Key>>(`/v1/api-keys${query}`);
      assert.ok(answer.body.data.every((key) => !('key' in key) && !('token_hash' in key)));
      return answer.body.data.map((key) => key.id);
    };
    assert.deepEqual(await ids(owner), [c.id, a.id]);
    assert.deepEqual(await ids(member), [b.id]);
    assert.deepEqual(await ids(owner, `?service_account_id=${service_account_id}`), [c.id]);
    assert.deepEqual(await ids(owner, `?service_account_id=${newId('sa')}`), []);
    const page = await api.as(owner).get<Page<Key>>('/v1/api-keys?limit=1');
    assert.deepEqual(
      page.body.data.map((key) => key.id),
      [c.id],
    );
    assert.deepEqual(await ids(owner, `?limit=1&cursor=${page.body.next_cursor}`), [a.id]);
    const other_filter = `?cursor=${page.body.next_cursor}&service_account_id=${service_account_id}`;
    assertError(await api.as(owner).get(`/v1/api-keys${other_filter}`), 'INVALID_REQUEST');
  });

  test('a service account reads its own keys and nobody else’s', async () => {
    const owner = await api.member();
    await make(owner);
    const [one, two] = [
      await api.serviceAccount(owner.org_id, '*'),
      await api.serviceAccount(owner.org_id, '*'),
    ];
    const mine = await make(owner, { scope: '*', service_account_id: one });
    const theirs = await make(owner, { scope: '*', service_account_id: two });
    const list = await api.as(mine.key).get<Page<Key>>('/v1/api-keys');
    assert.deepEqual(
      list.body.data.map((key) => key.id),
      [mine.id],
    );
    assertError(await api.as(mine.key).get(`/v1/api-keys/${theirs.id}`), 'NOT_FOUND');
    assertError(await api.as(mine.key).get(`/v1/api-keys?service_account_id=${two}`), 'FORBIDDEN');
  });

  test('a use sets last_used_at', async () => {
    const ann = await api.member();
    const made = await make(ann);
    assert.equal(made.last_used_at, null);
    await works(made.key);
    const after = await api.as(ann).get<Key>(`/v1/api-keys/${made.id}`);
    assert.ok(Date.now() - Date.parse(after.body.last_used_at ?? '') < 60_000);
  });
});

describe('204', () => {
  test('a revoked key and its predecessor in grace end at once', async () => {
    const ann = await api.member();
    const made = await make(ann);
    const { body: next } = await rotate(ann, made.id, { grace_seconds: 600 });
    const answer = await api.as(ann).delete(`/v1/api-keys/${made.id}`);
    assert.equal(answer.status, 204);
    assert.equal(answer.text, '');
    assert.deepEqual([await works(made.key), await works(next.key)], [false, false]);
    assertError(await api.as(ann).get(`/v1/api-keys/${made.id}`), 'NOT_FOUND');
    assert.equal((await eventsOf(db, ann.org_id)).at(-1)?.type, 'api_key.revoked');
  });
});

describe('400', () => {
  test('bad names, scopes, lifetimes, networks, unknown fields', async () => {
    const ann = await api.member();
    const good = { name: 'ci', scope: 'vm:read' };
    const bodies: unknown[] = [
      {},
      [],
      'text',
      { name: 'ci' },
      { scope: '*' },
      { ...good, name: '' },
      { ...good, name: 'x'.repeat(101) },
      { ...good, name: 'a\u0000b' },
      { ...good, scope: '' },
      { ...good, scope: 'vm' },
      { ...good, scope: 'vm:read  vm:write' },
      { ...good, scope: ' vm:read' },
      { ...good, scope: 'vm:read,vm:write' },
      { ...good, scope: '* vm:read' },
      { ...good, scope: 'VM:READ' },
      { ...good, scope: ['vm:read'] },
      { ...good, scope: 'constructor:read' },
      { ...good, expires_in_seconds: 0 },
      { ...good, expires_in_seconds: '60' },
      { ...good, service_account_id: 'sa_1' },
      { ...good, allowed_cidrs: ['10.0.0.0/33'] },
      { ...good, allowed_cidrs: Array.from({ length: 51 }, (_, i) => `10.0.0.${i}`) },
      { ...good, user_id: ann.user_id },
    ];
    for (const body of bodies) {
      const answer = await api.as(ann).post('/v1/api-keys', body);
      assertError(answer, 'INVALID_REQUEST');
    }
    assert.deepEqual((await api.as(ann).get<Page<Key>>('/v1/api-keys')).body.data, []);
  });

  test('bad pages', async () => {
    const ann = await api.member();
    const others = await api.member();
    await make(others);
    await make(others);
    const { next_cursor } = (await api.as(others).get<Page<Key>>('/v1/api-keys?limit=1')).body;
    for (const query of [
      'limit=0',
      'limit=201',
      'cursor=abc',
      `cursor=${next_cursor}`,
      'user_id=x',
      'service_account_id=x',
    ]) {
      assertError(await api.as(ann).get(`/v1/api-keys?${query}`), 'INVALID_REQUEST');
    }
  });
});

describe('401', () => {
  test('no key, an invented key, a key with a bad checksum', async () => {
    const made = await make(await api.member());
    const bad_sum = made.key.slice(0, -1) + (made.key.endsWith('0') ? '1' : '0');
    for (const key of [undefined, 'berth_live_x', bad_sum]) {
      assertError(await api.client.as(key).get('/v1/api-keys'), 'UNAUTHENTICATED');
    }
    assertError(await api.client.post('/v1/api-keys', {}), 'UNAUTHENTICATED');
  });

  test('a key ends with its creator’s membership', async () => {
    const owner = await api.member();
    const member = await api.member({ org_id: owner.org_id, role: 'member' });
    const made = await make(member);
    await api.as(owner).delete(`/v1/orgs/${owner.org_id}/members/${member.user_id}`);
    assertError(await api.as(made.key).get('/v1/instances'), 'UNAUTHENTICATED');
  });
});

describe('403 FORBIDDEN', () => {
  test('no role creates a key with a scope that the role lacks, * included', async () => {
    const owner = await api.member();
    for (const role of ['admin', 'member', 'billing'] as const) {
      const who = await api.member({ org_id: owner.org_id, role });
      for (const scope of [...ALL_SCOPES, '*', ALL_SCOPES.join(' ')]) {
        const answer = await api.as(who).post('/v1/api-keys', { name: 'x', scope });
        const held: readonly string[] = ROLE_SCOPES[role];
        const allowed = held.includes(scope) || held.length === ALL_SCOPES.length;
        if (allowed) assert.equal(answer.status, 201, `${role} ${scope} ${answer.text}`);
        else assertError(answer, 'FORBIDDEN', /exceeds your own/);
      }
    }
  });

  test('a key creates none with a later expiry or other networks', async () => {
    const ann = await api.member();
    const ending = await make(ann, { scope: 'api_keys:write', expires_in_seconds: 60 });
    const here = await make(ann, { scope: 'api_keys:write', allowed_cidrs: ['127.0.0.0/8'] });
    const ask = (key: string, more: object) =>
      api.as(key).post('/v1/api-keys', { name: 'x', scope: 'api_keys:write', ...more });
    assertError(await ask(ending.key, { expires_in_seconds: 61 }), 'FORBIDDEN', /outlive/);
    for (const cidr of ['0.0.0.0/0', '126.0.0.0/7', '10.0.0.1', '::/0', '::ffff:0:0/96']) {
      const allowed_cidrs = ['127.0.0.1', cidr];
      assertError(
        await ask(here.key, { allowed_cidrs }),
        'FORBIDDEN',
        /where the one that makes it does not/,
      );
    }
  });

  test('a key creates none beyond its own scope, and none at all without api_keys:write', async () => {
    const ann = await api.member();
    const some = await make(ann, { scope: 'api_keys:write vm:read' });
    for (const scope of ['*', 'vm:write', 'vm:read vm:write']) {
      assertError(await api.as(some.key).post('/v1/api-keys', { name: 'x', scope }), 'FORBIDDEN');
    }
    const none = await make(ann, { scope: 'api_keys:read' });
    assertError(
      await api.as(none.key).post('/v1/api-keys', { name: 'x', scope: 'api_keys:read' }),
      'FORBIDDEN',
    );
    assertError(await api.as(none.key).delete(`/v1/api-keys/${some.id}`), 'FORBIDDEN');
    const write_only = await make(ann, { scope: 'api_keys:write' });
    assertError(await api.as(write_only.key).get('/v1/api-keys'), 'FORBIDDEN');
  });

  test('escalation is refused before a 400 for the body', async () => {
    const ann = await api.member({ role: 'member', org_id: (await api.member()).org_id });
    assertError(await api.as(ann).post('/v1/api-keys', { scope: 'audit:read', colour: 1 }), 'FORBIDDEN');
    assertError(await api.as(ann).post('/v1/api-keys', { service_account_id: 7 }), 'FORBIDDEN');
  });

  test('a service account creates, rotates and revokes no key', async () => {
    const owner = await api.member();
    const service_account_id = await api.serviceAccount(owner.org_id, '*');
    const { id, key } = await make(owner, { scope: '*', service_account_id });
    for (const body of [
      { name: 'x', scope: 'vm:read' },
      { name: 'x', scope: 'vm:read', service_account_id },
      {},
    ]) {
      assertError(await api.as(key).post('/v1/api-keys', body), 'FORBIDDEN');
    }
    assertError(await api.as(key).delete(`/v1/api-keys/${id}`), 'FORBIDDEN');
    assertError(await api.as(key).post(`/v1/api-keys/${id}/rotate`), 'FORBIDDEN');
  });

  test('only owners and administrators manage service accounts’ keys', async () => {
    const owner = await api.member();
    const service_account_id = await api.serviceAccount(owner.org_id, 'vm:read');
    const made = await make(owner, { service_account_id });
    for (const role of ['member', 'billing'] as const) {
      const who = await api.member({ org_id: owner.org_id, role });
      const body = { name: 'x', scope: 'vm:read', service_account_id };
      assertError(await api.as(who).post('/v1/api-keys', body), 'FORBIDDEN');
      assertError(
        await api.as(who).get(`/v1/api-keys?service_account_id=${service_account_id}`),
        'FORBIDDEN',
      );
      assertError(await api.as(who).get(`/v1/api-keys/${made.id}`), 'NOT_FOUND');
      assertError(await api.as(who).delete(`/v1/api-keys/${made.id}`), 'NOT_FOUND');
    }
  });

  test('a service account’s key stays within the service account’s scope', async () => {
    const owner = await api.member();
    const service_account_id = await api.serviceAccount(owner.org_id, 'vm:read');
    for (const scope of ['*', 'vm:write', 'vm:read instances:read']) {
      const answer = await api.as(owner).post('/v1/api-keys', { name: 'x', scope, service_account_id });
      assertError(answer, 'FORBIDDEN', /service account/);
    }
  });
});

describe('404', () => {
  test('a key of another organisation, of another member, an unknown id and a malformed id get the same answer', async () => {
    const owner = await api.member();
    const member = await api.member({ org_id: owner.org_id, role: 'member' });
    const theirs = await make(await api.member());
    const colleague = await make(member);
    const answers: Answer<unknown>[] = [];
    for (const id of [newId('ak'), theirs.id, colleague.id, 'nonsense', newId('sa')]) {
      answers.push(await api.as(owner).get(`/v1/api-keys/${id}`));
      answers.push(await api.as(owner).delete(`/v1/api-keys/${id}`));
      answers.push(await rotate(owner, id));
    }
    for (const answer of answers) {
      assertError(answer, 'NOT_FOUND');
      assert.deepEqual(withoutRequestId(answer), withoutRequestId(answers[0] ?? answer));
    }
    assert.ok((await works(theirs.key)) && (await works(colleague.key)));
  });

  test('a service account of another organisation', async () => {
    const ann = await api.member();
    const foreign = await api.serviceAccount((await api.member()).org_id, '*');
    for (const service_account_id of [foreign, newId('sa')]) {
      const body = { name: 'x', scope: 'vm:read', service_account_id };
      assertError(await api.as(ann).post('/v1/api-keys', body), 'NOT_FOUND');
    }
  });
});

describe('422', () => {
  test('the same Idempotency-Key with another body', async () => {
    const ann = await api.member();
    const headers = { 'idempotency-key': 'k' };
    await api.as(ann).post('/v1/api-keys', { name: 'a', scope: 'vm:read' }, { headers });
    const other = await api.as(ann).post('/v1/api-keys', { name: 'b', scope: 'vm:read' }, { headers });
    assertError(other, 'IDEMPOTENCY_KEY_REUSED');
  });
});

describe('200', () => {
  test('a rotation returns a new key under the same id and ends the old one at once', async () => {
    const ann = await api.member();
    const made = await make(ann);
    const answer = await rotate(ann, made.id);
    assert.equal(answer.status, 200, answer.text);
    assert.equal(answer.headers['cache-control'], 'no-store');
    assert.equal(answer.body.id, made.id);
    assert.equal(answer.body.previous_expires_at, null);
    assert.deepEqual([await works(made.key), await works(answer.body.key)], [false, true]);
    assert.equal((await eventsOf(db, ann.org_id)).at(-1)?.type, 'api_key.rotated');
  });

  test('with grace the old key works until the grace is over or the next rotation', async () => {
    const ann = await api.member();
    const made = await make(ann);
    const { body: second } = await rotate(ann, made.id, { grace_seconds: 604_800 });
    assert.deepEqual([await works(made.key), await works(second.key)], [true, true]);
    await db
      .updateTable('api_keys')
      .set({ previous_expires_at: new Date(Date.now() - 1) })
      .where('id', '=', made.id)
      .execute();
    assert.deepEqual([await works(made.key), await works(second.key)], [false, true]);
    const { body: third } = await rotate(ann, made.id, { grace_seconds: 60 });
    assert.deepEqual(
      [await works(made.key), await works(second.key), await works(third.key)],
      [false, true, true],
    );
    const { body: fourth } = await rotate(ann, made.id, { grace_seconds: 60 });
    assert.deepEqual(
      [await works(second.key), await works(third.key), await works(fourth.key)],
      [false, true, true],
    );
  });

  test('an administrator rotates a service account’s key', async () => {
    const owner = await api.member();
    const service_account_id = await api.serviceAccount(owner.org_id, 'vm:read');
    const admin = await api.member({ org_id: owner.org_id, role: 'admin' });
    const made = await make(owner, { service_account_id });
    assert.equal((await rotate(admin, made.id)).status, 200);
  });

  test('a replay returns the same key, also after a further rotation', async () => {
    const ann = await api.member();
    const headers = { 'idempotency-key': 'k1' };
    const json = { name: 'ci', scope: '*' };
    const first = await api.as(ann).post<MadeKey>('/v1/api-keys', json, { headers });
    await rotate(ann, first.body.id);
    const second = await api.as(ann).post<MadeKey>('/v1/api-keys', json, { headers });
    assert.deepEqual(second.body, first.body);
    assert.equal(second.headers['idempotency-replayed'], 'true');
    assert.equal(second.headers['cache-control'], 'no-store');
    assert.equal((await api.as(ann).get<Page<Key>>('/v1/api-keys')).body.data.length, 1);
  });
});

describe('400', () => {
  test('bad grace', async () => {
    const ann = await api.member();
    const made = await make(ann);
    for (const grace_seconds of [-1, 604_801, 1.5, '60', null]) {
      assertError(await rotate(ann, made.id, { grace_seconds }), 'INVALID_REQUEST');
    }
  });
});

describe('403 FORBIDDEN', () => {
  test('a key rotates nothing, not even itself', async () => {
    const ann = await api.member();
    const made = await make(ann, { scope: '*' });
    assertError(await api.as(made.key).post(`/v1/api-keys/${made.id}/rotate`), 'FORBIDDEN');
  });
});

describe('403 SUDO_REQUIRED', () => {
  test('a rotation without a grant, or with an older session’s', async () => {
    const ann = await api.member();
    const made = await make(ann);
    const path = `/v1/api-keys/${made.id}/rotate`;
    const foreign = await api.sudo(await api.member());
    for (const headers of [{}, foreign, { cookie: '__Secure-berth_sudo=x' }]) {
      assertError(await api.as(ann).call('POST', path, { json: { colour: 1 }, headers }), 'SUDO_REQUIRED');
    }
    assert.ok(await works(made.key));
  });
});

describe('409', () => {
  test('a key that has expired is not rotated', async () => {
    const ann = await api.member();
    const made = await make(ann);
    await db
      .updateTable('api_keys')
      .set({ expires_at: new Date(Date.now() - 1) })
      .where('id', '=', made.id)
      .execute();
    const answer = await rotate(ann, made.id);
    assertError(answer, 'CONFLICT', /has expired\. Make a new one/);
  });
});

describe('412', () => {
  test('a key that was rotated since it was read is neither rotated nor revoked', async () => {
    const ann = await api.member();
    const made = await make(ann);
    const seen = { 'if-match': String((await api.as(ann).get(`/v1/api-keys/${made.id}`)).headers['etag']) };
    assert.equal((await rotate(ann, made.id, {}, seen)).status, 200);
    assertError(await rotate(ann, made.id, {}, seen), 'PRECONDITION_FAILED');
    const path = `/v1/api-keys/${made.id}`;
    assertError(await api.as(ann).call('DELETE', path, { headers: seen }), 'PRECONDITION_FAILED');
  });
});

const WHOLE = { scope: '*' };
const revoke = (who: Person | string, id: string, query = '?descendants=true') =>
  api.as(who).delete(`/v1/api-keys/${id}${query}`);
const read = async (who: Person, id: string) => (await api.as(who).get<Key>(`/v1/api-keys/${id}`)).body;
async function addSshKey(who: Person | string): Promise<string> {
  const body = { name: 'laptop', public_key: randomPublicKey().line };
  const answer = await api.as(who).post<{ id: string }>('/v1/me/ssh-keys', body);
  assert.equal(answer.status, 201, answer.text);
  return answer.body.id;
}
const sshKeysOf = async (who: Person) =>
  (await api.as(who).get<{ data: { id: string }[] }>('/v1/me/ssh-keys')).body.data.map(({ id }) => id);
const work = async (keys: readonly MadeKey[]) => {
  const found = [];
  for (const { key } of keys) found.push(await works(key));
  return found;
};

/** `leaked` has made `child`, and that one `grandchild`; a session has made `leaked` and `other`. */
async function family() {
  const ann = await api.member();
  const leaked = await make(ann, WHOLE);
  const child = await make(leaked.key, WHOLE);
  const grandchild = await make(child.key, WHOLE);
  return { ann, leaked, child, grandchild, other: await make(ann, WHOLE) };
}

describe('201', () => {
  test('a key names the key that created it, or none if a session did; a rotation changes neither', async () => {
    const { ann, leaked, child, grandchild } = await family();
    assert.deepEqual(
      [leaked, child, grandchild].map((key) => key.created_by_key),
      [null, leaked.id, child.id],
    );
    assert.equal((await rotate(ann, leaked.id)).status, 200);
    assert.equal((await read(ann, child.id)).created_by_key, leaked.id);
    assert.equal((await rotate(ann, child.id)).body.created_by_key, leaked.id);
  });
});

describe('204', () => {
  test('a key alone: the keys that it created stay, and still name it', async () => {
    const { ann, leaked, child, grandchild } = await family();
    for (const query of ['', '?descendants=false']) {
      const key = query === '' ? leaked : child;
      assert.equal((await revoke(ann, key.id, query)).status, 204);
    }
    assert.deepEqual(await work([leaked, child, grandchild]), [false, false, true]);
    assert.equal((await read(ann, grandchild.id)).created_by_key, child.id);
  });

  test('with its descendants: every API key and SSH key that was created with it, each as if it were revoked alone', async () => {
    const { ann, leaked, child, grandchild, other } = await family();
    const service_account_id = await api.serviceAccount(ann.org_id, '*');
    const robot = await make(grandchild.key, { service_account_id });
    const [by_leaked, by_grandchild] = [await addSshKey(leaked.key), await addSshKey(grandchild.key)];
    const kept = [await addSshKey(other.key), await addSshKey(ann)];
    assert.equal((await revoke(ann, leaked.id)).status, 204);
    assert.deepEqual(await work([leaked, child, grandchild, robot, other]), [
      ...[false, false, false, false, true],
    ]);
    assert.deepEqual((await sshKeysOf(ann)).sort(), kept.toSorted());

    const gone = [leaked.id, child.id, grandchild.id, robot.id].sort();
    const revoked = (await eventsOf(db, ann.org_id)).filter(({ type }) => type.endsWith('.revoked'));
    const idsOf = (type: string, name: string) =>
      revoked
        .filter((event) => event.type === type)
        .map(({ data }) => (data as Record<string, { id: string }>)[name]?.id)
        .sort();
    assert.deepEqual(idsOf('api_key.revoked', 'api_key'), gone);
    assert.deepEqual(idsOf('ssh_key.revoked', 'ssh_key'), [by_leaked, by_grandchild].sort());
    const audit = await auditOf(db, ann.org_id);
    const noted = (action: string) =>
      audit
        .filter((entry) => entry.action === action)
        .map(({ target }) => target)
        .sort();
    assert.deepEqual(noted('api_key.revoke'), gone);
    assert.deepEqual(noted('ssh_key.revoke'), [by_leaked, by_grandchild].sort());
  });

  test('with its descendants, also those behind a key that was revoked earlier', async () => {
    const { ann, leaked, child, grandchild } = await family();
    const ssh_key = await addSshKey(child.key);
    // By the thief, to be forgotten.
    assert.equal((await revoke(grandchild.key, child.id, '')).status, 204);
    assert.equal((await revoke(ann, leaked.id)).status, 204);
    assert.deepEqual(await work([grandchild]), [false]);
    assert.ok(!(await sshKeysOf(ann)).includes(ssh_key));
  });

  test('while it creates another: that one is not created, or is revoked too', async () => {
    const { ann, leaked, child } = await family();
    const answers = await allBeforeAnyCommits<{ status: number }>(db, [
      () => api.as(leaked.key).post('/v1/api-keys', { name: 'late', scope: 'vm:read' }),
      () => api.as(child.key).post('/v1/api-keys', { name: 'late', scope: 'vm:read' }),
      () => revoke(ann, leaked.id),
    ]);
    assert.equal(answers.at(-1)?.status, 204);
    const { data } = (await api.as(ann).get<{ data: Key[] }>('/v1/api-keys')).body;
    assert.deepEqual(
      data.filter(({ name }) => name === 'late'),
      [],
    );
  });

  test('a member who leaves: all of their keys, but not those of service accounts', async () => {
    const owner = await api.member();
    const ann = await api.member({ org_id: owner.org_id, role: 'admin' });
    const first = await make(ann, WHOLE);
    const second = await make(first.key, WHOLE);
    const service_account_id = await api.serviceAccount(owner.org_id, '*');
    const robot = await make(second.key, { service_account_id });
    const left = await api.as(owner).delete(`/v1/orgs/${owner.org_id}/members/${ann.user_id}`);
    assert.equal(left.status, 204, left.text);
    assert.deepEqual(await work([first, second, robot]), [false, false, true]);
  });
});

describe('400', () => {
  test('descendants that is not a boolean', async () => {
    const { ann, other } = await family();
    assertError(await revoke(ann, other.id, '?descendants=all'), 'INVALID_REQUEST', /descendants/);
  });
});

describe('403', () => {
  test('a descendant of a service account, if the caller is no administrator any more: nothing is revoked', async () => {
    const owner = await api.member();
    const ann = await api.member({ org_id: owner.org_id, role: 'admin' });
    const key = await make(ann, WHOLE);
    const service_account_id = await api.serviceAccount(owner.org_id, '*');
    const robot = await make(key.key, { service_account_id });
    await db.updateTable('memberships').set({ role: 'member' }).where('user_id', '=', ann.user_id).execute();
    assertError(await revoke(ann, key.id), 'FORBIDDEN', /service accounts/);
    assert.deepEqual(await work([key, robot]), [true, true]);
  });
});

describe('404', () => {
  test('a colleague’s key', async () => {
    const { ann, leaked, child } = await family();
    const bob = await api.member({ org_id: ann.org_id, role: 'admin' });
    assertError(await revoke(bob, leaked.id), 'NOT_FOUND');
    assert.deepEqual(await work([leaked, child]), [true, true]);
  });
});

describe('412', () => {
  test('a key that changed since it was read', async () => {
    const { ann, leaked, child } = await family();
    const headers = { 'if-match': '"other"' };
    const answer = await api
      .as(ann)
      .call('DELETE', `/v1/api-keys/${leaked.id}?descendants=true`, { headers });
    assertError(answer, 'PRECONDITION_FAILED');
    assert.deepEqual(await work([leaked, child]), [true, true]);
  });
});
