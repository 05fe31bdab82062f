/** A change to an API key, its holder or a quota takes effect with the next request of a key that has just been used. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setQuota } from '../../src/control-plane/organisations/quotas.ts';
import { present } from '../../src/shared/assert.ts';
import type { ApiKeyId } from '../../src/shared/ids.ts';
import { accessApiForFile } from '../support/access-api.ts';
import { apiKeyCalls, type Key } from '../support/api-keys.ts';
import { assertError } from '../support/expect.ts';
import type { Person } from '../support/people.ts';

const api = await accessApiForFile();
const { db } = api;
const { make, rotate } = apiKeyCalls(api);
const BODY = { name: 'made', scope: 'vm:read' };

interface Caller {
  readonly ann: Person;
  readonly id: ApiKeyId;
  readonly key: string;
}

/** A caller whose key has just made another, in an organisation whose keys are unlimited. */
async function caller(scope = 'api_keys:write vm:read vm:write'): Promise<Caller> {
  const { org_id } = await api.member();
  const ann = await api.member({ org_id, role: 'admin' });
  const { id, key } = await api.key({ org_id, user_id: ann.user_id }, scope);
  await make(key);
  return { ann, id, key };
}

async function countKeys({ ann }: Caller): Promise<number> {
  return (await db.selectFrom('api_keys').select('id').where('user_id', '=', ann.user_id).execute()).length;
}

const post = ({ key }: Caller, body: object = BODY, headers: Record<string, string> = {}) =>
  api.as(key).call<Key>('POST', '/v1/api-keys', { json: body, headers });

const change = (id: ApiKeyId, values: object) =>
  db.updateTable('api_keys').set(values).where('id', '=', id).execute();

const ENDS: Record<string, (who: Caller) => Promise<unknown>> = {
  'is revoked': ({ id }) => db.deleteFrom('api_keys').where('id', '=', id).execute(),
  expires: ({ id }) => change(id, { expires_at: new Date(Date.now() - 1_000) }),
  'is rotated': ({ ann, id }) => rotate(ann, id),
  'is limited to other networks': ({ id }) => change(id, { allowed_cidrs: ['203.0.113.0/24'] }),
  'loses its holder': ({ ann: { org_id, user_id } }) =>
    db.deleteFrom('memberships').where('org_id', '=', org_id).where('user_id', '=', user_id).execute(),
};

describe('401', () => {
  for (const [what, happens] of Object.entries(ENDS)) {
    test(`a key that ${what} creates no other, whatever the body is`, async () => {
      for (const body of [BODY, { name: 'no scope' }, { ...BODY, scope: 'not:one' }]) {
        const who = await caller();
        await happens(who);
        const left = await countKeys(who);
        assertError(await post(who, body), 'UNAUTHENTICATED');
        assertError(await post(who, body), 'UNAUTHENTICATED');
        assert.equal(await countKeys(who), left);
      }
    });
  }

  test('among concurrent requests only those of revoked keys are refused', async () => {
    const callers = await Promise.all(Array.from({ length: 24 }, () => caller()));
    const revoked = new Set(callers.filter((_, at) => at % 5 === 0));
    for (const { id } of revoked) await db.deleteFrom('api_keys').where('id', '=', id).execute();
    const answers = await Promise.all(callers.map((who) => post(who)));
    for (const [at, who] of callers.entries()) {
      const answer = present(answers[at], 'an answer each');
      assert.equal(answer.status, revoked.has(who) ? 401 : 201);
      assert.equal(await countKeys(who), revoked.has(who) ? 1 : 3);
    }
  });
});

describe('403', () => {
  const LESS: Record<string, (who: Caller) => Promise<unknown>> = {
    'that loses a scope': ({ id }) => change(id, { scope: 'api_keys:write' }),
    'that loses the scope for the route': ({ id }) => change(id, { scope: 'vm:read' }),
    'whose holder gets a lesser role': ({ ann: { org_id, user_id } }) =>
      db
        .updateTable('memberships')
        .set({ role: 'billing' })
        .where('org_id', '=', org_id)
        .where('user_id', '=', user_id)
        .execute(),
  };
  for (const [whose, happens] of Object.entries(LESS)) {
    test(`a key ${whose} creates none beyond its own scope`, async () => {
      const who = await caller();
      await happens(who);
      assertError(await post(who, { ...BODY, scope: 'vm:write' }), 'FORBIDDEN');
      assert.equal(await countKeys(who), 2);
    });
  }

  test('it comes before a 400 for the body', async () => {
    for (const [happens, body] of [
      [LESS['that loses a scope'], { scope: 'vm:write' }],
      [LESS['whose holder gets a lesser role'], { service_account_id: 'none' }],
    ] as const) {
      const who = await caller();
      await happens?.(who);
      assertError(await post(who, body), 'FORBIDDEN');
    }
  });

  test('in another organisation than its own', async () => {
    const who = await caller();
    const other = await api.member();
    assertError(await post(who, BODY, { 'berth-org': other.org_id }), 'FORBIDDEN');
  });
});

describe('201', () => {
  test('with a scope that the key got later', async () => {
    const who = await caller('api_keys:write vm:read');
    await change(who.id, { scope: 'api_keys:write vm:read vm:write' });
    assert.equal((await post(who, { ...BODY, scope: 'vm:write' })).status, 201);
  });

  test('an expiry that the key got later bounds the keys that it creates', async () => {
    const who = await caller();
    const expires_at = new Date(Date.now() + 3_600_000);
    await change(who.id, { expires_at });
    assert.equal((await post(who)).body.expires_at, expires_at.toISOString());
  });
});

describe('429', () => {
  test('a quota applies from its setting to its removal', async () => {
    const who = await caller();
    await setQuota(db, who.ann.org_id, { api_keys: 3 });
    assert.equal((await post(who)).status, 201);
    assertError(await post(who), 'QUOTA_EXCEEDED', /quota of api_keys is 3: 3 used/);
    assert.equal(await countKeys(who), 3);
    await setQuota(db, who.ann.org_id, { api_keys: null });
    assert.equal((await post(who)).status, 201);
    assert.equal((await post(who)).status, 201);
  });

  test('among concurrent requests only those of limited organisations are refused', async () => {
    const callers = await Promise.all(Array.from({ length: 12 }, () => caller()));
    const limited = new Set(callers.filter((_, at) => at % 5 === 0));
    for (const { ann } of limited) await setQuota(db, ann.org_id, { api_keys: 2 });
    const answers = await Promise.all(callers.map((who) => post(who)));
    for (const [at, who] of callers.entries()) {
      assert.equal(answers[at]?.status, limited.has(who) ? 429 : 201);
      assert.equal(await countKeys(who), limited.has(who) ? 2 : 3);
    }
  });
});
