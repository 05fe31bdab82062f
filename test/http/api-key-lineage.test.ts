/** Which API key made which: DELETE /v1/api-keys/:id?descendants=true ends all that was made with a leaked one. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { accessApiForFile, auditOf, eventsOf } from '../support/access-api.ts';
import { apiKeyCalls, type Key, type MadeKey } from '../support/api-keys.ts';
import { assertError } from '../support/expect.ts';
import { allBeforeAnyCommits } from '../support/lock-waits.ts';
import type { Person } from '../support/people.ts';
import { randomPublicKey } from '../support/people.ts';

const api = await accessApiForFile();
const { db } = api;
const { make, rotate, works } = apiKeyCalls(api);

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
