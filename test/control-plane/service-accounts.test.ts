/** Service accounts: /v1/service-accounts, one describe a status. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { newId, type ServiceAccountId } from '../../src/shared/ids.ts';
import { accessApiForFile, auditOf, eventsOf } from '../support/access-api.ts';
import type { Page } from '../support/client.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import type { Person } from '../support/people.ts';

const api = await accessApiForFile();
const { db } = api;
const PATH = '/v1/service-accounts';

interface ServiceAccount {
  readonly id: ServiceAccountId;
  readonly name: string;
  readonly scope: string;
  readonly created_at: string;
}

async function make(who: Person | string, body: Record<string, unknown> = {}): Promise<ServiceAccount> {
  const answer = await api.as(who).post<ServiceAccount>(PATH, { name: 'robot', scope: 'vm:read', ...body });
  assert.equal(answer.status, 201, answer.text);
  return answer.body;
}

describe('201', () => {
  test('an owner, an administrator and a key of theirs create one', async () => {
    const owner = await api.member();
    const admin = await api.member({ org_id: owner.org_id, role: 'admin' });
    const { key } = await api.key({ org_id: owner.org_id, user_id: admin.user_id }, 'api_keys:write vm:read');
    for (const who of [owner, admin, key]) {
      const made = await make(who);
      assert.deepEqual(Object.keys(made), ['id', 'name', 'scope', 'created_at']);
      assert.match(made.id, /^sa_/);
    }
    assert.deepEqual(
      (await auditOf(db, owner.org_id)).map((entry) => entry.action),
      Array(3).fill('service_account.create'),
    );
  });

  test('a replayed Idempotency-Key makes no second one', async () => {
    const owner = await api.member();
    const headers = { 'idempotency-key': 'k' };
    const json = { name: 'robot', scope: '*' };
    const first = await api.as(owner).post(PATH, json, { headers });
    const second = await api.as(owner).post(PATH, json, { headers });
    assert.deepEqual(second.body, first.body);
    assert.equal((await api.as(owner).get<Page<ServiceAccount>>(PATH)).body.data.length, 1);
  });
});

describe('200', () => {
  test('a list has the organisation’s, newest first, page by page', async () => {
    const owner = await api.member();
    await make(await api.member());
    const made = [await make(owner), await make(owner), await make(owner)].map((each) => each.id).reverse();
    const first = await api.as(owner).get<Page<ServiceAccount>>(`${PATH}?limit=2`);
    const rest = await api.as(owner).get<Page<ServiceAccount>>(`${PATH}?cursor=${first.body.next_cursor}`);
    assert.deepEqual(
      [...first.body.data, ...rest.body.data].map((each) => each.id),
      made,
    );
    assert.equal((await api.as(owner).get<ServiceAccount>(`${PATH}/${made[0]}`)).body.id, made[0]);
  });
});

describe('204', () => {
  test('its keys end at once with it', async () => {
    const owner = await api.member();
    const { id } = await make(owner);
    const { key } = await api.key({ org_id: owner.org_id, service_account_id: id }, 'vm:read');
    assert.equal((await api.as(key).get(`/v1/instances/${newId('inst')}/vm`)).status, 404);
    assert.equal((await api.as(owner).delete(`${PATH}/${id}`)).status, 204);
    assertError(await api.as(key).get(`/v1/instances/${newId('inst')}/vm`), 'UNAUTHENTICATED');
    assertError(await api.as(owner).get(`${PATH}/${id}`), 'NOT_FOUND');
    assert.deepEqual(
      (await eventsOf(db, owner.org_id)).map((event) => event.type),
      ['api_key.revoked'],
    );
  });
});

describe('400', () => {
  test('bad names and scopes, unknown fields, bad pages', async () => {
    const owner = await api.member();
    for (const body of [
      {},
      { name: 'x' },
      { scope: '*' },
      { name: '', scope: '*' },
      { name: 'x', scope: 'all' },
      { name: 'x', scope: '*', role: 'admin' },
    ]) {
      assertError(await api.as(owner).post(PATH, body), 'INVALID_REQUEST');
    }
    for (const query of ['limit=0', 'limit=201', 'cursor=x', 'name=x']) {
      assertError(await api.as(owner).get(`${PATH}?${query}`), 'INVALID_REQUEST');
    }
  });
});

describe('401', () => {
  test('no credential', async () => {
    assertError(await api.client.get(PATH), 'UNAUTHENTICATED');
    assertError(await api.client.post(PATH, {}), 'UNAUTHENTICATED');
    assertError(await api.client.delete(`${PATH}/${newId('sa')}`), 'UNAUTHENTICATED');
  });
});

describe('403', () => {
  test('members, billing, service accounts and keys without the scope', async () => {
    const owner = await api.member();
    const { id } = await make(owner, { scope: '*' });
    const robot = await api.key({ org_id: owner.org_id, service_account_id: id }, '*');
    const weak = await api.key({ org_id: owner.org_id, user_id: owner.user_id }, 'vm:read');
    const member = await api.member({ org_id: owner.org_id, role: 'member' });
    const billing = await api.member({ org_id: owner.org_id, role: 'billing' });
    for (const who of [robot.key, weak.key, member, billing]) {
      assertError(await api.as(who).get(PATH), 'FORBIDDEN');
      assertError(await api.as(who).get(`${PATH}/${id}`), 'FORBIDDEN');
      assertError(await api.as(who).post(PATH, {}), 'FORBIDDEN');
      assertError(await api.as(who).delete(`${PATH}/${id}`), 'FORBIDDEN');
    }
  });

  test('a scope beyond the maker’s own, whatever else is wrong', async () => {
    const owner = await api.member();
    const { key } = await api.key({ org_id: owner.org_id, user_id: owner.user_id }, 'api_keys:write vm:read');
    for (const body of [
      { name: 'x', scope: '*' },
      { name: 'x', scope: 'vm:write' },
      { scope: 'vm:write', colour: 1 },
    ]) {
      assertError(await api.as(key).post(PATH, body), 'FORBIDDEN', /exceeds your own/);
    }
  });
});

describe('404', () => {
  test("another organisation's, an unknown one and a malformed id get the same answer", async () => {
    const owner = await api.member();
    const theirs = await make(await api.member());
    const answers = [];
    for (const id of [newId('sa'), theirs.id, 'nonsense', newId('ak')]) {
      answers.push(await api.as(owner).get(`${PATH}/${id}`), await api.as(owner).delete(`${PATH}/${id}`));
    }
    for (const answer of answers) {
      assertError(answer, 'NOT_FOUND');
      assert.deepEqual(withoutRequestId(answer), withoutRequestId(answers[0] ?? answer));
    }
  });
});
