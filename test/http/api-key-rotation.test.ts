/** Rotation: /v1/api-keys/:id/rotate, one describe a status. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { accessApiForFile, eventsOf } from '../support/access-api.ts';
import { apiKeyCalls, type Key, type MadeKey } from '../support/api-keys.ts';
import type { Page } from '../support/client.ts';
import { assertError } from '../support/expect.ts';

const api = await accessApiForFile();
const { db } = api;
const { make, rotate, works } = apiKeyCalls(api);

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
