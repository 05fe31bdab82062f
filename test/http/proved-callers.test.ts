/**
 * `POST /v1/api-keys` of a key that was looked up a moment ago goes by what was found then, and its transaction proves
 * that this still holds. Whatever has changed in between, it answers as if it had looked.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Authenticator } from '../../src/auth/authenticate.ts';
import { blindTransaction, DisprovedError } from '../../src/db/blind-writes.ts';
import { append } from '../../src/events/append.ts';
import { present } from '../../src/lib/assert.ts';
import type { ApiKeyId } from '../../src/lib/ids.ts';
import { setQuota } from '../../src/orgs/quotas.ts';
import { accessApiForFile, auditOf, type Member } from '../support/access-api.ts';
import { apiKeyCalls, type Key } from '../support/api-keys.ts';
import { assertError } from '../support/expect.ts';

const api = await accessApiForFile();
const { db } = api;
const { make, rotate } = apiKeyCalls(api);
const BODY = { name: 'made', scope: 'vm:read' };

interface Caller {
  readonly ann: Member;
  readonly id: ApiKeyId;
  readonly key: string;
}

/** Whose key has made one already, and so is remembered, in an organisation whose keys are unlimited. */
async function remembered(scope = 'api_keys:write vm:read vm:write'): Promise<Caller> {
  const { org_id } = await api.member();
  const ann = await api.member({ org_id, role: 'admin' });
  const { id, key } = await api.key({ org_id, user_id: ann.user_id }, scope);
  await make(key);
  return { ann, id, key };
}

/** How many keys a person has. */
async function keysOf({ ann }: Caller): Promise<number> {
  return (await db.selectFrom('api_keys').select('id').where('user_id', '=', ann.user_id).execute()).length;
}

const post = ({ key }: Caller, body: object = BODY, headers: Record<string, string> = {}) =>
  api.as(key).call<Key>('POST', '/v1/api-keys', { json: body, headers });

const change = (id: ApiKeyId, values: object) =>
  db.updateTable('api_keys').set(values).where('id', '=', id).execute();

/** What may happen between two requests, and leaves the caller without what it was let in for. */
const LOSSES: Record<string, (who: Caller) => Promise<unknown>> = {
  'was revoked': ({ id }) => db.deleteFrom('api_keys').where('id', '=', id).execute(),
  'has ended': ({ id }) => change(id, { expires_at: new Date(Date.now() - 1_000) }),
  'was rotated': ({ ann, id }) => rotate(ann, id),
  'has been bound to other networks': ({ id }) => change(id, { allowed_cidrs: ['203.0.113.0/24'] }),
  'is of somebody who has left': ({ ann: { org_id, user_id } }) =>
    db.deleteFrom('memberships').where('org_id', '=', org_id).where('user_id', '=', user_id).execute(),
};

describe('401', () => {
  for (const [what, happens] of Object.entries(LOSSES)) {
    test(`a remembered key that ${what} makes none, whatever its body is`, async () => {
      for (const body of [BODY, { name: 'no scope' }, { ...BODY, scope: 'not:one' }]) {
        const who = await remembered();
        await happens(who);
        const left = await keysOf(who);
        assertError(await post(who, body), 'UNAUTHENTICATED');
        assertError(await post(who, body), 'UNAUTHENTICATED');
        assert.equal(await keysOf(who), left);
      }
    });
  }

  test('it is one alone of many at once', async () => {
    const callers = await Promise.all(Array.from({ length: 24 }, () => remembered()));
    const revoked = new Set(callers.filter((_, at) => at % 5 === 0));
    for (const { id } of revoked) await db.deleteFrom('api_keys').where('id', '=', id).execute();
    const answers = await Promise.all(callers.map((who) => post(who)));
    for (const [at, who] of callers.entries()) {
      const answer = present(answers[at], 'an answer each');
      assert.equal(answer.status, revoked.has(who) ? 401 : 201);
      assert.equal(await keysOf(who), revoked.has(who) ? 1 : 3);
    }
  });
});

describe('403', () => {
  const LESS: Record<string, (who: Caller) => Promise<unknown>> = {
    'whose scope is less than it was': ({ id }) => change(id, { scope: 'api_keys:write' }),
    'without the scope for it any more': ({ id }) => change(id, { scope: 'vm:read' }),
    'of somebody whose role is less than it was': ({ ann: { org_id, user_id } }) =>
      db
        .updateTable('memberships')
        .set({ role: 'billing' })
        .where('org_id', '=', org_id)
        .where('user_id', '=', user_id)
        .execute(),
  };
  for (const [whose, happens] of Object.entries(LESS)) {
    test(`a remembered key ${whose} makes none beyond its own`, async () => {
      const who = await remembered();
      await happens(who);
      assertError(await post(who, { ...BODY, scope: 'vm:write' }), 'FORBIDDEN');
      assert.equal(await keysOf(who), 2);
    });
  }

  test('it comes before what is wrong with the body', async () => {
    for (const [happens, body] of [
      [LESS['whose scope is less than it was'], { scope: 'vm:write' }],
      [LESS['of somebody whose role is less than it was'], { service_account_id: 'none' }],
    ] as const) {
      const who = await remembered();
      await happens?.(who);
      assertError(await post(who, body), 'FORBIDDEN');
    }
  });

  test('another organisation than its own', async () => {
    const who = await remembered();
    const other = await api.member();
    assertError(await post(who, BODY, { 'berth-org': other.org_id }), 'FORBIDDEN');
  });
});

describe('201', () => {
  test('a remembered key whose scope is more than it was', async () => {
    const who = await remembered('api_keys:write vm:read');
    await change(who.id, { scope: 'api_keys:write vm:read vm:write' });
    assert.equal((await post(who, { ...BODY, scope: 'vm:write' })).status, 201);
  });

  test('bounds that came meanwhile are those of what it makes', async () => {
    const who = await remembered();
    const expires_at = new Date(Date.now() + 3_600_000);
    await change(who.id, { expires_at });
    const made = await post(who);
    assert.equal(made.body.expires_at, expires_at.toISOString());
  });

  test('for a service account, and under an Idempotency-Key, who calls is looked up', async () => {
    const who = await remembered('api_keys:write vm:read');
    const service_account_id = await api.serviceAccount(who.ann.org_id, 'vm:read');
    assert.equal((await post(who, { ...BODY, service_account_id })).status, 201);
    const first = await post(who, BODY, { 'idempotency-key': 'a' });
    assert.deepEqual((await post(who, BODY, { 'idempotency-key': 'a' })).body, first.body);
    assert.equal(await keysOf(who), 3);
    const audit = await auditOf(db, who.ann.org_id);
    assert.equal(audit.length, 3);
  });
});

describe('429', () => {
  test('a limit that came since a remembered key made one', async () => {
    const who = await remembered();
    await setQuota(db, who.ann.org_id, { api_keys: 3 });
    assert.equal((await post(who)).status, 201);
    assertError(await post(who), 'QUOTA_EXCEEDED', /quota of api_keys is 3: 3 used/);
    assert.equal(await keysOf(who), 3);
    await setQuota(db, who.ann.org_id, { api_keys: null });
    assert.equal((await post(who)).status, 201);
    assert.equal((await post(who)).status, 201);
  });

  test('it is one organisation alone of many at once', async () => {
    const callers = await Promise.all(Array.from({ length: 12 }, () => remembered()));
    const limited = new Set(callers.filter((_, at) => at % 5 === 0));
    for (const { ann } of limited) await setQuota(db, ann.org_id, { api_keys: 2 });
    const answers = await Promise.all(callers.map((who) => post(who)));
    for (const [at, who] of callers.entries()) {
      assert.equal(answers[at]?.status, limited.has(who) ? 429 : 201);
      assert.equal(await keysOf(who), limited.has(who) ? 2 : 3);
    }
  });
});

test('a key is remembered from its look-up on, while its use need not be noted', async () => {
  const who = await remembered();
  const authenticator = new Authenticator(api.pool);
  const headers = { authorization: `Bearer ${who.key}`, org: undefined, ip: '127.0.0.1' };
  assert.equal(authenticator.remembered(headers), undefined);
  const principal = await authenticator.authenticate(headers);
  const known = present(authenticator.remembered(headers), 'one that was just looked up');
  assert.deepEqual(known.principal, principal);
  const note = (type: 'api_key.created') => (tx: Parameters<typeof append>[0]) =>
    append(tx, { org_id: who.ann.org_id, type, data: {}, actor: who.ann.user_id }).then(() => undefined);
  await blindTransaction(api.pool, note('api_key.created'), [known.proof]);
  await change(who.id, { scope: 'vm:read' });
  const disproved = blindTransaction(api.pool, note('api_key.created'), [known.proof]);
  await assert.rejects(disproved, DisprovedError);
  await assert.rejects(
    blindTransaction(api.pool, async () => undefined, [known.proof]),
    DisprovedError,
    'also of what writes nothing',
  );
  await change(who.id, { last_used_at: new Date(Date.now() - 61_000) });
  await authenticator.authenticate(headers);
  assert.ok(authenticator.remembered(headers), 'its use was noted');
  await db.deleteFrom('api_keys').where('id', '=', who.id).execute();
  await assert.rejects(authenticator.authenticate(headers), { code: 'UNAUTHENTICATED' });
  assert.equal(authenticator.remembered(headers), undefined, 'it is forgotten');
});
