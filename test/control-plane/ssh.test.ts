/**
 * Connection details of an instance, its allowed keys, and in which organisations an SSH key grants access: by the credential that
 * registered it, and its owner's role.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { offerAddresses } from '../../src/control-plane/instances/ssh-address-store.ts';
import { VM_STATES } from '../../src/control-plane/vms/model.ts';
import { type InstanceId, newId, type OrgId, type SshKeyId } from '../../src/shared/ids.ts';
import type { Role } from '../../src/shared/roles.ts';
import { apiForFile, type InstanceOut } from '../support/api.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { allBeforeAnyCommits, untilLocksAreWaitedFor } from '../support/lock-waits.ts';
import { notificationsOf, raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeKey, makeSshKey, type Person, randomPublicKey } from '../support/people.ts';
import { HOST_KEY, SSH_ADDRESS } from '../support/scripted-agent.ts';
import { instanceIn, stateOf } from '../support/states.ts';

const api = await apiForFile();
const owner = await api.person();
const client = api.as(owner);
const mine = await makeSshKey(api.db, owner.user_id);

interface Details {
  readonly host: string;
  readonly port: number;
  readonly user: string;
  readonly host_keys: readonly unknown[];
  readonly known_hosts: readonly string[];
  readonly command: string;
  readonly allowed_keys: number;
}
interface KeySet {
  readonly mode: string;
  readonly data: readonly { id: string; owner_id: string; fingerprint: string; name: string; type: string }[];
}
const idsOf = (set: KeySet) => set.data.map((key) => key.id);

describe('200', () => {
  test('the details of a running VM are enough to connect', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const { body, status } = await client.get<Details>(`/v1/instances/${id}/ssh`);
    assert.equal(status, 200);
    const [host] = api.context.ssh.hosts;
    assert.deepEqual(body, {
      host,
      port: body.port,
      user: 'root',
      host_keys: [HOST_KEY],
      known_hosts: [`[${host}]:${body.port} ${HOST_KEY.public_key}`],
      command: `ssh -p ${body.port} root@${host}`,
      allowed_keys: 1,
    });
    assert.ok(body.port >= 22_000 && body.port <= 22_999);
  });

  test('the instance has the address in every state, and the host keys of its last boot', async () => {
    const [host] = api.context.ssh.hosts;
    const made = await api.instance(owner);
    const { port } = made.ssh;
    assert.deepEqual([made.ssh, made.host_keys], [{ host, port }, []]);
    await client.post(`/v1/instances/${made.id}/vm`);
    await api.agent.ready(made.id);
    assert.equal((await client.get<Details>(`/v1/instances/${made.id}/ssh`)).body.port, port);
    await client.delete(`/v1/instances/${made.id}/vm`);
    await api.agent.stopped(made.id);
    const { body } = await client.get<InstanceOut>(`/v1/instances/${made.id}`);
    assert.deepEqual([body.vm.state, body.ssh, body.host_keys], ['stopped', { host, port }, [HOST_KEY]]);
  });

  test('another BERTH_SSH_HOST changes the address of every instance, and its ETag', async () => {
    const { id, ssh } = await api.instance(owner);
    const before = await client.get<InstanceOut>(`/v1/instances/${id}`);
    await transaction(api.db, (tx) => offerAddresses(tx, { ...api.context.ssh, hosts: ['ssh.example.org'] }));
    const after = await client.get<InstanceOut>(`/v1/instances/${id}`);
    assert.deepEqual(after.body.ssh, { host: 'ssh.example.org', port: ssh.port });
    assert.notEqual(after.headers['etag'], before.headers['etag']);
    await transaction(api.db, (tx) => offerAddresses(tx, api.context.ssh));
    assert.deepEqual((await client.get<InstanceOut>(`/v1/instances/${id}`)).body.ssh, ssh);
  });

  test('host, port and host keys stay the same over stop and start', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const read = async () => (await client.get<Details>(`/v1/instances/${id}/ssh`)).body;
    const before = await read();
    await client.delete(`/v1/instances/${id}/vm`);
    await api.agent.stopped(id);
    await client.post(`/v1/instances/${id}/vm`);
    await api.agent.ready(id);
    assert.deepEqual(await read(), before);
  });

  test('a host key that was changed in the guest is returned from the next boot on, marked as changed', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const other = {
      ...HOST_KEY,
      fingerprint: `SHA256:${'o'.repeat(43)}`,
      public_key: `${HOST_KEY.public_key.slice(0, -4)}AAAA`,
    };
    const seen = {
      kind: 'running',
      reboots: 0,
      ssh_address: SSH_ADDRESS,
      applied_keys: [],
      recovered: null,
    } as const;
    const told = async () => (await client.get<Details>(`/v1/instances/${id}/ssh`)).body.host_keys;
    // Its sshd, which runs on, may show the old one still.
    await api.agent.observe(id, { ...seen, host_keys: [other] });
    assert.deepEqual(await told(), [HOST_KEY]);
    await client.delete(`/v1/instances/${id}/vm`);
    await api.agent.stopped(id);
    await client.post(`/v1/instances/${id}/vm`);
    await api.agent.observe(id, { ...seen, host_keys: [other] });
    assert.deepEqual(await told(), [other]);
    const { reason } = await stateOf(api, owner, id);
    assert.equal(reason?.code, 'ready');
    assert.match(reason?.message ?? '', /host key has changed/);
  });

  test('a running VM that nobody can log in to gives 409 with the reason, until somebody can', async () => {
    for (const code of ['ssh_unavailable', 'network_unavailable'] as const) {
      const { id } = await instanceIn(api, owner, 'starting');
      const reason = { code, message: 'The guest says why.' };
      await api.agent.observe(id, {
        ...{ kind: 'running', reboots: 0, ssh_address: SSH_ADDRESS, applied_keys: [], recovered: null },
        ...{ host_keys: [], access_problem: reason },
      });
      const { state, reason: shown } = await stateOf(api, owner, id);
      assert.deepEqual([state, shown?.code, shown?.message], ['running', code, reason.message]);
      const refused = await client.get(`/v1/instances/${id}/ssh`);
      assertError(refused, 'CONFLICT');
      assert.match(refused.text, new RegExp(`SSH does not work \\(${code}\\)\\. The guest says why\\.`));
      await api.agent.observe(id, { kind: 'resumed' });
      assert.equal((await client.get(`/v1/instances/${id}/ssh`)).status, 200);
    }
  });

  test("mode account accepts the creator's keys, also later ones, and nobody else's", async () => {
    const someone = await api.person();
    const colleague = await api.person({ org_id: someone.org_id, role: 'admin' });
    await makeSshKey(api.db, colleague.user_id);
    const { id } = await api.instance(someone);
    const read = async () => (await api.as(someone).get<KeySet>(`/v1/instances/${id}/ssh-keys`)).body;
    assert.deepEqual(await read(), { mode: 'account', data: [] });
    const added = await makeSshKey(api.db, someone.user_id);
    assert.deepEqual(idsOf(await read()), [added.id]);
  });

  test("PUT replaces the whole set, an empty set accepts no key, mode account restores the account's keys", async () => {
    const colleague = await api.person({ org_id: owner.org_id, role: 'member' });
    const theirs = await makeSshKey(api.db, colleague.user_id);
    const { id } = await api.instance(owner);
    const path = `/v1/instances/${id}/ssh-keys`;
    const put = async (body: unknown) => {
      const answer = await client.put<KeySet>(path, body);
      assert.equal(answer.status, 200, answer.text);
      assert.deepEqual((await client.get<KeySet>(path)).body, answer.body);
      return answer.body;
    };
    const both = await put({ ssh_key_ids: [mine.id, theirs.id] });
    assert.equal(both.mode, 'explicit');
    assert.deepEqual(idsOf(both).sort(), [mine.id, theirs.id].sort());
    assert.equal(both.data.find((key) => key.id === theirs.id)?.owner_id, colleague.user_id);
    assert.deepEqual(idsOf(await put({ ssh_key_ids: [theirs.id, theirs.id] })), [theirs.id]);
    assert.deepEqual(await put({ ssh_key_ids: [] }), { mode: 'explicit', data: [] });
    const back = await put({ mode: 'account' });
    assert.deepEqual([back.mode, idsOf(back)], ['account', [mine.id]]);
  });

  test('a change reaches the host of a running VM at once', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const { authorized_keys } = await api.agent.known(id);
    assert.ok(authorized_keys.includes(mine.line));
    await client.put(`/v1/instances/${id}/ssh-keys`, { ssh_key_ids: [] });
    await api.agent.assigned(id, 'nobody is let in', (each) => each.authorized_keys.length === 0);
  });

  test('the keys of a member who leaves are removed', async () => {
    const leaver = await api.person({ org_id: owner.org_id, role: 'member' });
    const key = await makeSshKey(api.db, leaver.user_id);
    const { id } = await api.instance(owner);
    const path = `/v1/instances/${id}/ssh-keys`;
    await client.put(path, { ssh_key_ids: [key.id] });
    await api.db.deleteFrom('memberships').where('user_id', '=', leaver.user_id).execute();
    assert.deepEqual((await client.get<KeySet>(path)).body.data, []);
  });

  test('the keys of a member who leaves are removed also from a set that is written concurrently', async () => {
    const leaver = await api.person({ org_id: owner.org_id, role: 'member' });
    const key = await makeSshKey(api.db, leaver.user_id);
    const { id } = await api.instance(owner);
    const [put, left] = await allBeforeAnyCommits(api.db, [
      () => client.put(`/v1/instances/${id}/ssh-keys`, { ssh_key_ids: [key.id] }),
      () => client.delete(`/v1/orgs/${owner.org_id}/members/${leaver.user_id}`),
    ]);
    assert.deepEqual([put?.status, left?.status], [200, 204]);
    const rows = await api.db.selectFrom('instance_ssh_keys').selectAll().execute();
    assert.ok(rows.every((row) => row.ssh_key_id !== key.id));
  });
});

describe("GET /v1/orgs/:id/ssh-keys: the keys of the organisation's members", () => {
  interface Keys {
    readonly data: KeySet['data'];
    readonly next_cursor: string | null;
  }
  const page = async (session: string, org_id: string, query = '') =>
    (await api.as(session).get<Keys>(`/v1/orgs/${org_id}/ssh-keys${query}`)).body;

  test('every member reads id, name, type, fingerprint and owner of all keys, newest first', async () => {
    const boss = await api.person();
    const first = await makeSshKey(api.db, boss.user_id);
    const member = await api.person({ org_id: boss.org_id, role: 'billing' });
    const second = await makeSshKey(api.db, member.user_id);
    const { data } = await page(member.session, boss.org_id);
    assert.deepEqual(
      data.map(({ id, owner_id }) => ({ id, owner_id })),
      [
        { id: second.id, owner_id: member.user_id },
        { id: first.id, owner_id: boss.user_id },
      ],
    );
    assert.deepEqual(Object.keys(data[0] ?? {}), ['id', 'name', 'type', 'fingerprint', 'owner_id']);

    const newest = await page(boss.session, boss.org_id, '?limit=1');
    assert.equal(newest.data[0]?.id, second.id);
    const rest = await page(boss.session, boss.org_id, `?limit=1&cursor=${newest.next_cursor}`);
    assert.deepEqual([rest.data.map(({ id }) => id), rest.next_cursor], [[first.id], null]);
  });

  test('an instance accepts every listed key, and no key of another organisation is listed', async () => {
    const boss = await api.person();
    const key = await makeSshKey(api.db, boss.user_id);
    const { data } = await page(boss.session, boss.org_id);
    assert.deepEqual(
      data.map(({ id }) => id),
      [key.id],
    );
    const { id } = await api.instance(boss);
    const put = await api.as(boss).put(`/v1/instances/${id}/ssh-keys`, { ssh_key_ids: [key.id] });
    assert.equal(put.status, 200, put.text);
  });
});

describe('400', () => {
  const bodies: Record<string, unknown> = {
    'no body': undefined,
    'mode explicit without keys': { mode: 'explicit' },
    'both forms at once': { mode: 'account', ssh_key_ids: [] },
    'keys that are no list': { ssh_key_ids: 'x' },
    'a key that is a number': { ssh_key_ids: [1] },
    'an id that is none': { ssh_key_ids: ['x'] },
    'a key that never was': { ssh_key_ids: [newId('key')] },
    '201 keys': { ssh_key_ids: Array.from({ length: 201 }, () => newId('key')) },
  };
  for (const [what, body] of Object.entries(bodies)) {
    test(`PUT with ${what}`, async () => {
      const { id } = await api.instance(owner);
      assertError(await client.put(`/v1/instances/${id}/ssh-keys`, body), 'INVALID_REQUEST');
    });
  }
  test('a key that is revoked concurrently', async () => {
    const { id } = await api.instance(owner);
    const key = await makeSshKey(api.db, owner.user_id);
    const body = { ssh_key_ids: [mine.id, key.id] };
    const { answer } = await api.db.transaction().execute(async (tx) => {
      await tx.deleteFrom('ssh_keys').where('id', '=', key.id).execute();
      const asked = client.put(`/v1/instances/${id}/ssh-keys`, body);
      await untilLocksAreWaitedFor(api.db, 1);
      return { answer: asked };
    });
    assertError(await answer, 'INVALID_REQUEST', new RegExp(key.id));
  });
  test('a key of a user outside the organisation, without a change', async () => {
    const stranger = await api.person();
    const foreign = await makeSshKey(api.db, stranger.user_id);
    const { id } = await api.instance(owner);
    const body = { ssh_key_ids: [mine.id, foreign.id] };
    assertError(await client.put(`/v1/instances/${id}/ssh-keys`, body), 'INVALID_REQUEST', /ssh_key_ids/);
    const { body: after } = await client.get<KeySet>(`/v1/instances/${id}/ssh-keys`);
    assert.deepEqual([after.mode, idsOf(after)], ['account', [mine.id]]);
  });
  test('unknown query parameters', async () => {
    const { id } = await api.instance(owner);
    for (const path of ['ssh', 'ssh-keys']) {
      assertError(await client.get(`/v1/instances/${id}/${path}?x=1`), 'INVALID_REQUEST', /x/);
    }
    const answer = await client.put(`/v1/instances/${id}/ssh-keys?x=1`, { mode: 'account' });
    assertError(answer, 'INVALID_REQUEST', /x/);
  });
});

describe('403', () => {
  test('each call needs its own scope', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const vm = (await makeKey(api.db, owner, 'vm:read instances:read')).key;
    const keys = (await makeKey(api.db, owner, 'ssh_keys:read')).key;
    assert.equal((await api.as(vm).get(`/v1/instances/${id}/ssh`)).status, 200);
    assertError(await api.as(vm).get(`/v1/instances/${id}/ssh-keys`), 'FORBIDDEN', /ssh_keys:read/);
    assert.equal((await api.as(keys).get(`/v1/instances/${id}/ssh-keys`)).status, 200);
    assertError(await api.as(keys).get(`/v1/instances/${id}/ssh`), 'FORBIDDEN', /vm:read/);
    const put = await api.as(keys).put(`/v1/instances/${id}/ssh-keys`, { mode: 'account' });
    assertError(put, 'FORBIDDEN', /ssh_keys:write/);
  });
});

describe('404', () => {
  test("another organisation's instance is the same as one that never was", async () => {
    const stranger = await api.person();
    const { id } = await api.instance(stranger);
    for (const [method, path] of [
      ['GET', 'ssh'],
      ['GET', 'ssh-keys'],
      ['PUT', 'ssh-keys'],
    ] as const) {
      const options = method === 'PUT' ? { json: { mode: 'account' } } : {};
      const theirs = await client.call(method, `/v1/instances/${id}/${path}`, options);
      assertError(theirs, 'NOT_FOUND');
      for (const none of [newId('inst'), 'x']) {
        const answer = await client.call(method, `/v1/instances/${none}/${path}`, options);
        assert.deepEqual(withoutRequestId(answer), withoutRequestId(theirs));
      }
    }
  });
});

describe('409', () => {
  for (const state of VM_STATES.filter((each) => each !== 'running')) {
    test(`the details of a VM that is ${state}`, async () => {
      const { id } = await instanceIn(api, owner, state);
      assertError(await client.get(`/v1/instances/${id}/ssh`), 'VM_NOT_RUNNING', new RegExp(state));
    });
  }
});

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
