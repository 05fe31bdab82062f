/** The caller's account and its SSH keys. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { deleteUser } from '../../src/control-plane/identity/store.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { untilLocksAreWaitedFor } from '../support/lock-waits.ts';
import { makeKey, makeSshKey, type Person, randomPublicKey } from '../support/people.ts';

const api = await apiForFile();
const owner = await api.person();
const KEYS = '/v1/me/ssh-keys';

interface SshKeyOut {
  readonly id: string;
  readonly name: string;
  readonly type: string;
  readonly fingerprint: string;
  readonly public_key: string;
  readonly created_at: string;
  readonly last_used_at: string | null;
}

describe('200', () => {
  test('GET /v1/me shows the account and no secret', async () => {
    const { body, status } = await api.as(owner).get<Record<string, unknown>>('/v1/me');
    assert.equal(status, 200);
    assert.deepEqual(Object.keys(body).sort(), [
      'created_at',
      'email',
      'email_confirmed',
      'id',
      'mfa_enabled',
      'name',
      'oidc_login',
      'password_login',
    ]);
    assert.equal(body['id'], owner.user_id);
  });
  test("GET shows the caller's keys only, also to a member of the same organisation", async () => {
    const other = await api.person({ org_id: owner.org_id, role: 'admin' });
    await makeSshKey(api.db, other.user_id);
    const { id } = await makeSshKey(api.db, owner.user_id);
    const { body } = await api.as(owner).get<Page<SshKeyOut>>(KEYS);
    assert.deepEqual(
      body.data.map((key) => key.id),
      [id],
    );
  });
});

describe('201', () => {
  test('POST registers a key, shows its type and fingerprint, and keeps no comment', async () => {
    const { line, fingerprint } = randomPublicKey();
    const answer = await api
      .as(owner)
      .post<SshKeyOut>(KEYS, { name: 'Läptop 1', public_key: `${line} me@laptop\n` });
    assert.equal(answer.status, 201, answer.text);
    const { id, created_at, ...rest } = answer.body;
    assert.match(id, /^key_/);
    assert.match(created_at, /Z$/);
    assert.deepEqual(rest, {
      name: 'Läptop 1',
      type: 'ssh-ed25519',
      fingerprint,
      public_key: line,
      org_id: null,
      last_used_at: null,
    });
  });
  test('the same key may be on two accounts', async () => {
    const other = await api.person();
    const { line } = randomPublicKey();
    for (const who of [owner, other]) {
      assert.equal((await api.as(who).post(KEYS, { name: 'a', public_key: line })).status, 201);
    }
  });
});

describe('204', () => {
  test('DELETE revokes a key', async () => {
    const { id } = await makeSshKey(api.db, owner.user_id);
    const answer = await api.as(owner).delete(`${KEYS}/${id}`);
    assert.deepEqual([answer.status, answer.text], [204, '']);
    assertError(await api.as(owner).delete(`${KEYS}/${id}`), 'NOT_FOUND');
  });
});

describe('401: the account is deleted beside its own request', () => {
  const name = 'Late';
  const requests = {
    'PATCH /v1/me': (who: Person) => api.as(who).patch('/v1/me', { name }),
    'POST /v1/orgs': (who: Person) => api.as(who).post('/v1/orgs', { name }),
  };
  for (const [what, request] of Object.entries(requests)) {
    test(what, async () => {
      const who = await api.person();
      const { under_way } = await api.db.transaction().execute(async (tx) => {
        await deleteUser(tx, who.user_id);
        const asked = request(who);
        await untilLocksAreWaitedFor(api.db, 1);
        return { under_way: asked };
      });
      assertError(await under_way, 'UNAUTHENTICATED');
    });
  }
});

describe('400', () => {
  const { line } = randomPublicKey();
  const bodies: Record<string, unknown> = {
    'no body': undefined,
    'no name': { public_key: line },
    'an empty name': { name: '', public_key: line },
    'a name of 101 characters': { name: 'x'.repeat(101), public_key: line },
    'a name with a line break': { name: 'a\nb', public_key: line },
    'a name with NUL': { name: 'a\0b', public_key: line },
    'a private key': { name: 'a', public_key: '-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaA==' },
    'options before the key': { name: 'a', public_key: `no-pty ${line}` },
    'two keys': { name: 'a', public_key: `${line}\n${line}` },
    'an unknown field': { name: 'a', public_key: line, scope: '*' },
  };
  for (const [what, body] of Object.entries(bodies)) {
    test(`POST with ${what}`, async () => {
      assertError(await api.as(owner).post(KEYS, body), 'INVALID_REQUEST');
    });
  }
  test('unknown query parameters', async () => {
    assertError(await api.as(owner).get('/v1/me?x=1'), 'INVALID_REQUEST', /x/);
    const { id } = await makeSshKey(api.db, owner.user_id);
    assertError(await api.as(owner).delete(`${KEYS}/${id}?x=1`), 'INVALID_REQUEST', /x/);
    assert.equal((await api.as(owner).delete(`${KEYS}/${id}`)).status, 204);
  });
});

describe('403', () => {
  test('a key without the scope', async () => {
    const { key } = await makeKey(api.db, owner, 'ssh_keys:read');
    assert.equal((await api.as(key).get(KEYS)).status, 200);
    assertError(
      await api.as(key).post(KEYS, { name: 'a', public_key: randomPublicKey().line }),
      'FORBIDDEN',
      /ssh_keys:write/,
    );
  });
});

describe('404', () => {
  test("another account's key, like an unknown one", async () => {
    const other = await api.person({ org_id: owner.org_id, role: 'member' });
    const { id } = await makeSshKey(api.db, other.user_id);
    const theirs = await api.as(owner).delete(`${KEYS}/${id}`);
    assertError(theirs, 'NOT_FOUND');
    for (const none of [newId('key'), newId('ak'), 'x']) {
      const answer = await api.as(owner).delete(`${KEYS}/${none}`);
      assert.deepEqual(withoutRequestId(answer), withoutRequestId(theirs));
    }
    assert.equal((await api.as(other).delete(`${KEYS}/${id}`)).status, 204);
  });
});

describe('409', () => {
  test('a key that the account already has, whatever its comment and name', async () => {
    const { line } = randomPublicKey();
    await api.as(owner).post(KEYS, { name: 'a', public_key: line });
    const answer = await api.as(owner).post(KEYS, { name: 'b', public_key: `${line} again` });
    assertError(answer, 'CONFLICT', /already/);
  });
  test('of twenty concurrent registrations of one key one succeeds', async () => {
    const { line } = randomPublicKey();
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, i) => api.as(owner).post(KEYS, { name: `n${i}`, public_key: line })),
    );
    assert.deepEqual(answers.map((each) => each.status).sort(), [201, ...Array(19).fill(409)]);
  });
});

describe('429', () => {
  test('an account has at most 50 keys', async () => {
    const hoarder = await api.person();
    for (let i = 0; i < 50; i++) await makeSshKey(api.db, hoarder.user_id);
    const answer = await api.as(hoarder).post(KEYS, { name: 'a', public_key: randomPublicKey().line });
    assertError(answer, 'QUOTA_EXCEEDED', /The account's quota of ssh_keys is 50: 50 used/);
  });
  test('of ten concurrent requests for the last place one succeeds', async () => {
    const hoarder = await api.person();
    for (let i = 1; i < 50; i++) await makeSshKey(api.db, hoarder.user_id);
    const add = () => api.as(hoarder).post(KEYS, { name: 'a', public_key: randomPublicKey().line });
    const answers = await Promise.all(Array.from({ length: 10 }, add));
    assert.equal(answers.filter(({ status }) => status === 201).length, 1);
  });
});
