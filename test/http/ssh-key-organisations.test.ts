/** In which organisations an SSH key grants access: by the credential that registered it, and its owner's role. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { InstanceId, OrgId, SshKeyId } from '../../src/shared/ids.ts';
import type { Role } from '../../src/shared/roles.ts';
import { apiForFile } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { notificationsOf, raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeKey, makeSshKey, type Person, randomPublicKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile();
const { db } = api;
const KEYS = '/v1/me/ssh-keys';

interface KeyOut {
  readonly id: SshKeyId;
  readonly org_id: string | null;
  readonly fingerprint: string;
}
interface KeysOut {
  readonly data: readonly { readonly id: string }[];
}

/** One user in organisations A and B with an instance of theirs in each, and an API key of A. */
async function inTwo(role_in_b: Role = 'member') {
  const user = await api.person();
  const other = await api.person();
  const [a, b] = [user.org_id, other.org_id];
  await db.insertInto('memberships').values({ org_id: b, user_id: user.user_id, role: role_in_b }).execute();
  const in_b = { headers: { 'berth-org': b } };
  const at_a = (await api.instance(user)).id;
  const at_b = (await api.instance(other)).id;
  await db.updateTable('instances').set({ created_by: user.user_id }).where('id', '=', at_b).execute();
  const { key, id: key_id } = await makeKey(db, user, '*');
  return { user, other, a, b, in_b, at_a, at_b, key, key_id };
}

const newKey = () => ({ name: 'laptop', public_key: randomPublicKey().line });
async function add(who: Person | string, body = newKey()): Promise<KeyOut> {
  const answer = await api.as(who).post<KeyOut>(KEYS, body);
  assert.equal(answer.status, 201, answer.text);
  return answer.body;
}
async function letIn(who: Person, id: string): Promise<string[]> {
  const answer = await api.as(who).get<KeysOut>(`/v1/instances/${id}/ssh-keys`);
  assert.equal(answer.status, 200, answer.text);
  return answer.body.data.map((key) => key.id);
}
const listed = async (who: Person | string) =>
  (await api.as(who).get<KeysOut>(KEYS)).body.data.map((key) => key.id);

/** Of SSH keys, oldest first. */
async function eventsIn(org_id: OrgId): Promise<string[]> {
  const rows = await db
    .selectFrom('events')
    .select(['type', 'data'])
    .where('org_id', '=', org_id)
    .where('type', 'like', 'ssh_key.%')
    .orderBy('serial')
    .execute();
  return rows.map(({ type, data }) => `${type} ${(data as { ssh_key: { id: string } }).ssh_key.id}`);
}
async function auditIn(org_id: OrgId): Promise<string[]> {
  const rows = await db
    .selectFrom('audit_log')
    .select(['action', 'target'])
    .where('org_id', '=', org_id)
    .where('action', 'like', 'ssh_key.%')
    .orderBy('serial')
    .execute();
  return rows.map(({ action, target }) => `${action} ${target}`);
}

describe('a key that a session registers', () => {
  test('is valid in every organisation of its owner, and each has event and audit entry', async () => {
    const { user, other, a, b, at_a, at_b } = await inTwo();
    const key = await add(user);
    assert.equal(key.org_id, null);
    assert.deepEqual([await letIn(user, at_a), await letIn(other, at_b)], [[key.id], [key.id]]);
    await api.as(user).delete(`${KEYS}/${key.id}`);
    assert.deepEqual([await letIn(user, at_a), await letIn(other, at_b)], [[], []]);
    for (const org_id of [a, b]) {
      assert.deepEqual(await eventsIn(org_id), [`ssh_key.added ${key.id}`, `ssh_key.revoked ${key.id}`]);
      assert.deepEqual(await auditIn(org_id), [`ssh_key.add ${key.id}`, `ssh_key.revoke ${key.id}`]);
    }
  });

  test('notifies its owner once, in however many organisations', async () => {
    const { user } = await inTwo();
    const key = await add(user);
    await raiseNotificationsOfEvents(db);
    const told = (await notificationsOf(api.as(user))).filter(({ kind }) => kind === 'ssh_key.added');
    assert.deepEqual(
      told.map(({ resource, count }) => [resource?.id, count]),
      [[key.id, 1]],
    );
  });

  test('leaves no entry in an organisation where its owner has no instance', async () => {
    const { user, b, at_b } = await inTwo();
    await db.updateTable('instances').set({ created_by: 'usr_other' }).where('id', '=', at_b).execute();
    await add(user);
    assert.deepEqual([await eventsIn(b), await auditIn(b)], [[], []]);
  });

  test('leaves an entry in an organisation whose key set names it when it is revoked', async () => {
    const { user, other, b, at_b } = await inTwo('billing');
    const key = await add(user);
    assert.deepEqual(await eventsIn(b), []);
    const put = await api.as(other).put(`/v1/instances/${at_b}/ssh-keys`, { ssh_key_ids: [key.id] });
    assert.equal(put.status, 200, put.text);
    await api.as(user).delete(`${KEYS}/${key.id}`);
    assert.deepEqual(await eventsIn(b), [`ssh_key.revoked ${key.id}`]);
    assert.deepEqual(await auditIn(b), [`ssh_key.revoke ${key.id}`]);
  });
});

describe('a key that an API key registers', () => {
  test("is valid only in the API key's organisation, and only that has an entry", async () => {
    const { user, other, a, b, at_a, at_b, key } = await inTwo();
    const registered = await add(key);
    assert.equal(registered.org_id, a);
    assert.deepEqual([await letIn(user, at_a), await letIn(other, at_b)], [[registered.id], []]);
    assert.deepEqual(await eventsIn(a), [`ssh_key.added ${registered.id}`]);
    assert.deepEqual([await eventsIn(b), await auditIn(b)], [[], []]);
  });

  test('is in no key set of another organisation, and is not offered for one', async () => {
    const { user, other, a, b, at_a, at_b, key } = await inTwo();
    const registered = await add(key);
    const put = (who: Person, id: string) =>
      api.as(who).put(`/v1/instances/${id}/ssh-keys`, { ssh_key_ids: [registered.id] });
    assertError(await put(other, at_b), 'INVALID_REQUEST', new RegExp(registered.id));
    assert.equal((await put(user, at_a)).status, 200);
    const offered = async (who: Person, org_id: OrgId) =>
      (await api.as(who).get<KeysOut>(`/v1/orgs/${org_id}/ssh-keys`)).body.data.map(({ id }) => id);
    assert.deepEqual([await offered(user, a), await offered(other, b)], [[registered.id], []]);
    // Written past every check, it lets in nobody all the same.
    await db
      .insertInto('instance_ssh_keys')
      .values({ instance_id: at_b, ssh_key_id: registered.id })
      .execute();
    await db.updateTable('instances').set({ ssh_key_mode: 'explicit' }).where('id', '=', at_b).execute();
    assert.deepEqual(await letIn(other, at_b), []);
  });

  test("ends with its owner's membership, like the API key; a session's key stays", async () => {
    const owner = await api.person();
    const leaver = await api.person({ org_id: owner.org_id, role: 'member' });
    const { key } = await makeKey(db, leaver, '*');
    const [bound, free] = [await add(key), await add(leaver)];
    const { id } = await api.instance(owner);
    await api.as(owner).put(`/v1/instances/${id}/ssh-keys`, { ssh_key_ids: [bound.id, free.id] });
    const left = await api.as(owner).delete(`/v1/orgs/${owner.org_id}/members/${leaver.user_id}`);
    assert.equal(left.status, 204, left.text);
    assert.deepEqual([await letIn(owner, id), await listed(leaver)], [[], [free.id]]);
    assert.equal((await eventsIn(owner.org_id)).at(-1), `ssh_key.revoked ${bound.id}`);
  });

  test('is revoked by a session that acts in another organisation: its own organisation has the event and the entry', async () => {
    const { user, a, b, in_b, key } = await inTwo();
    const { id } = await add(key);
    assert.equal((await api.as(user).call('DELETE', `${KEYS}/${id}`, in_b)).status, 204);
    assert.deepEqual([(await eventsIn(a)).at(-1), await eventsIn(b)], [`ssh_key.revoked ${id}`, []]);
    assert.deepEqual([(await auditIn(a)).at(-1), await auditIn(b)], [`ssh_key.revoke ${id}`, []]);
  });
});

describe('an API key', () => {
  test('lists and revokes the keys that grant access in its organisation, and no other', async () => {
    const { user, b, key } = await inTwo();
    const everywhere = await makeSshKey(db, user.user_id);
    const in_b = await makeSshKey(db, user.user_id, b);
    const in_a = await add(key);
    assert.deepEqual((await listed(key)).sort(), [everywhere.id, in_a.id].sort());
    assert.equal((await listed(user)).length, 3);
    assertError(await api.as(key).delete(`${KEYS}/${in_b.id}`), 'NOT_FOUND');
    for (const id of [everywhere.id, in_a.id]) {
      assert.equal((await api.as(key).delete(`${KEYS}/${id}`)).status, 204);
    }
    assert.deepEqual(await listed(user), [in_b.id]);
  });

  test('409: a key that the account already has, without naming another organisation; a session sees which', async () => {
    const { user, a, b, key } = await inTwo();
    const of_b = (await makeKey(db, { user_id: user.user_id, org_id: b }, '*')).key;
    const body = newKey();
    const { id } = await add(of_b, body);
    const refused = await api.as(key).post(KEYS, body);
    assertError(refused, 'CONFLICT', /another organisation/);
    assert.ok(!refused.text.includes(b) && !refused.text.includes(id), refused.text);
    assertError(await api.as(user).post(KEYS, body), 'CONFLICT', new RegExp(`${b}.*${id}`));
    assertError(await api.as(of_b).post(KEYS, body), 'CONFLICT', /for this organisation/);
    assert.deepEqual(await eventsIn(a), []);
  });
});

describe('in mode account', () => {
  const roles: [Role, boolean][] = [
    ['owner', true],
    ['admin', true],
    ['member', true],
    ['billing', false],
  ];
  for (const [role, counts] of roles) {
    test(`the keys of a creator who is ${role} ${counts ? 'are valid' : 'are not valid'}`, async () => {
      const { user, other, at_b } = await inTwo(role);
      const { id } = await makeSshKey(db, user.user_id);
      assert.deepEqual(await letIn(other, at_b), counts ? [id] : []);
    });
  }

  test('a demotion reaches the host of a running VM at once, and so does its undoing', async () => {
    const boss = await api.person();
    const creator = await api.person({ org_id: boss.org_id, role: 'member' });
    const ssh_key = await makeSshKey(db, creator.user_id);
    const { id } = await instanceIn(api, creator, 'running');
    const knows = async (lines: readonly string[]) =>
      api.agent.assigned(id, `its keys are ${lines.length}`, ({ authorized_keys }) => {
        return JSON.stringify(authorized_keys) === JSON.stringify(lines);
      });
    await knows([ssh_key.line]);
    const change = async (role: Role) => {
      const answer = await api.as(boss).patch(`/v1/orgs/${boss.org_id}/members/${creator.user_id}`, { role });
      assert.equal(answer.status, 200, answer.text);
    };
    await change('billing');
    await knows([]);
    await change('admin');
    await knows([ssh_key.line]);
  });

  test('a key set keeps the keys of a billing member that an admin has named', async () => {
    const { user, other, at_b } = await inTwo('billing');
    const { id } = await makeSshKey(db, user.user_id);
    await api.as(other).put(`/v1/instances/${at_b}/ssh-keys`, { ssh_key_ids: [id] });
    assert.deepEqual(await letIn(other, at_b as InstanceId), [id]);
  });
});
