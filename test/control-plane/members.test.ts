/** Members: /v1/orgs/:id/members, one describe a status. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { allowedKeys } from '../../src/control-plane/ssh-keys/store.ts';
import { newId, type OrgId, type SshKeyId, type UserId } from '../../src/shared/ids.ts';
import type { Role } from '../../src/shared/roles.ts';
import { accessApiForFile, auditOf, eventsOf, makeInstance } from '../support/access-api.ts';
import type { Page } from '../support/client.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { allBeforeAnyCommits } from '../support/lock-waits.ts';
import type { Person } from '../support/people.ts';

const api = await accessApiForFile();
const { db } = api;

interface MemberOut {
  readonly id: UserId;
  readonly email: string;
  readonly name: string;
  readonly role: Role;
  readonly created_at: string;
}

const path = (org_id: string, user_id = '') => `/v1/orgs/${org_id}/members${user_id && `/${user_id}`}`;

async function rolesOf(org_id: OrgId): Promise<Record<string, Role>> {
  const rows = await db.selectFrom('memberships').selectAll().where('org_id', '=', org_id).execute();
  return Object.fromEntries(rows.map((row) => [row.user_id, row.role]));
}

async function addSshKey(user_id: UserId): Promise<SshKeyId> {
  const id = newId('key');
  await db
    .insertInto('ssh_keys')
    .values({ id, user_id, name: 'laptop', type: 'ssh-ed25519', fingerprint: id, public_key: 'x' })
    .execute();
  return id;
}

describe('200', () => {
  test('a list has the members, newest first, page by page', async () => {
    const owner = await api.member();
    const joined: string[] = [owner.user_id];
    // Whoever joins last may have the oldest account.
    const old = await api.member();
    for (let i = 0; i < 4; i++)
      joined.unshift((await api.member({ org_id: owner.org_id, role: 'member' })).user_id);
    await db
      .insertInto('memberships')
      .values({ org_id: owner.org_id, user_id: old.user_id, role: 'admin' })
      .execute();
    joined.unshift(old.user_id);
    const listed: string[] = [];
    for (let cursor: string | null = ''; cursor !== null; ) {
      const query: string = cursor === '' ? '' : `&cursor=${cursor}`;
      const { body } = await api.as(owner).get<Page<MemberOut>>(`${path(owner.org_id)}?limit=2${query}`);
      listed.push(...body.data.map((member) => member.id));
      cursor = body.next_cursor;
    }
    assert.deepEqual(listed, joined);
    const { body } = await api.as(old).get<Page<MemberOut>>(`${path(owner.org_id)}?limit=1`);
    assert.deepEqual(Object.keys(body.data[0] ?? {}), [
      'id',
      'email',
      'name',
      'role',
      'by_groups',
      'created_at',
    ]);
  });

  test('a cursor of one organisation is invalid in another', async () => {
    const owner = await api.member();
    await api.member({ org_id: owner.org_id });
    const second = await api.as(owner).post<{ id: string }>('/v1/orgs', { name: 'second' });
    const { body } = await api.as(owner).get<Page<MemberOut>>(`${path(owner.org_id)}?limit=1`);
    const other = await api.as(owner).get(`${path(second.body.id)}?cursor=${body.next_cursor}`);
    assertError(other, 'INVALID_REQUEST');
  });

  test('roles are changed by owners and administrators, with event and audit entry', async () => {
    const owner = await api.member();
    const admin = await api.member({ org_id: owner.org_id, role: 'admin' });
    const member = await api.member({ org_id: owner.org_id, role: 'member' });
    for (const [who, role] of [
      [admin, 'billing'],
      [owner, 'owner'],
    ] as const) {
      const answer = await api.as(who).patch<MemberOut>(path(owner.org_id, member.user_id), { role });
      assert.equal(answer.status, 200, answer.text);
      assert.equal(answer.body.role, role);
    }
    const same = await api.as(owner).patch<MemberOut>(path(owner.org_id, member.user_id), { role: 'owner' });
    assert.equal(same.status, 200);
    const events = await eventsOf(db, owner.org_id);
    assert.deepEqual(
      events.map((event) => [event.type, event.actor]),
      [
        ['member.role_changed', admin.user_id],
        ['member.role_changed', owner.user_id],
      ],
    );
    assert.equal((events[0]?.data as { previous_role?: string } | undefined)?.previous_role, 'member');
    assert.deepEqual(
      (await auditOf(db, owner.org_id)).map((entry) => [entry.action, entry.target]),
      [
        ['member.change_role', member.user_id],
        ['member.change_role', member.user_id],
      ],
    );
  });

  test('every member reads their own membership', async () => {
    const owner = await api.member();
    const member = await api.member({ org_id: owner.org_id, role: 'billing' });
    const answer = await api.as(member).get<MemberOut>(path(owner.org_id, member.user_id));
    assert.equal(answer.body.role, 'billing');
  });

  test('a new role applies to the next request of sessions and keys', async () => {
    const owner = await api.member();
    const member = await api.member({ org_id: owner.org_id, role: 'admin' });
    const { key } = await api.key({ org_id: owner.org_id, user_id: member.user_id }, '*');
    assert.equal((await api.as(key).get('/v1/audit')).status, 200);
    await api.as(owner).patch(path(owner.org_id, member.user_id), { role: 'member' });
    assertError(await api.as(key).get('/v1/audit'), 'FORBIDDEN');
    assertError(await api.as(member).get('/v1/audit'), 'FORBIDDEN');
  });

  test('a demotion withdraws the open invitations that the member could no longer create', async () => {
    const owner = await api.member();
    const second = await api.member({ org_id: owner.org_id, role: 'owner' });
    for (const role of ['owner', 'member'] as const) {
      await api
        .as(second)
        .post(`/v1/orgs/${owner.org_id}/invitations`, { email: `${role}@example.org`, role });
    }
    const open = async () => {
      const { body } = await api.as(owner).get<Page<MemberOut>>(`/v1/orgs/${owner.org_id}/invitations`);
      return body.data.map((invitation) => invitation.role);
    };
    await api.as(owner).patch(path(owner.org_id, second.user_id), { role: 'admin' });
    assert.deepEqual(await open(), ['member']);
    await api.as(owner).patch(path(owner.org_id, second.user_id), { role: 'member' });
    assert.deepEqual(await open(), []);
  });
});

describe('204', () => {
  test('keys, SSH access and read access end at once with the membership', async () => {
    const owner = await api.member();
    const member = await api.member({ org_id: owner.org_id, role: 'member' });
    const { key } = await api.key({ org_id: owner.org_id, user_id: member.user_id }, '*');
    const ssh_key_id = await addSshKey(member.user_id);
    const own = await makeInstance(db, owner.org_id, { created_by: member.user_id });
    const listed = await makeInstance(db, owner.org_id, { ssh_key_mode: 'explicit' });
    await db.insertInto('instance_ssh_keys').values({ instance_id: listed, ssh_key_id }).execute();
    assert.equal((await allowedKeys(db, [own, listed]).execute()).length, 2);

    const answer = await api.as(owner).delete(path(owner.org_id, member.user_id));
    assert.equal(answer.status, 204, answer.text);
    assertError(await api.as(key).get('/v1/instances'), 'UNAUTHENTICATED');
    assert.deepEqual(await allowedKeys(db, [own, listed]).execute(), []);
    assertError(await api.as(member).get(`/v1/orgs/${owner.org_id}`), 'NOT_FOUND');
    const types = (await eventsOf(db, owner.org_id)).map((event) => event.type);
    assert.deepEqual(types.sort(), ['api_key.revoked', 'member.removed']);
    // Coming back does not bring back the place in an explicit key set.
    await db
      .insertInto('memberships')
      .values({ org_id: owner.org_id, user_id: member.user_id, role: 'member' })
      .execute();
    assert.deepEqual((await allowedKeys(db, [listed]).execute()).length, 0);
  });

  test('the hosts of running VMs are notified', async () => {
    const owner = await api.member();
    const member = await api.member({ org_id: owner.org_id, role: 'member' });
    await addSshKey(member.user_id);
    const instance_id = await makeInstance(db, owner.org_id, { created_by: member.user_id });
    const host_id = newId('host');
    await db
      .insertInto('hosts')
      .values({ id: host_id, name: host_id, token_hash: Buffer.from(host_id) })
      .execute();
    await db
      .insertInto('vms')
      .values({
        id: newId('vm'),
        instance_id,
        boot: 1,
        epoch: 1,
        host_id,
        desired: 'running',
        state: 'running',
      })
      .execute();
    const { promise: heard, resolve } = Promise.withResolvers<void>();
    const unsubscribe = api.hub.subscribe('host', host_id, resolve);
    await api.as(owner).delete(path(owner.org_id, member.user_id));
    await heard;
    unsubscribe();
  });

  test('every member may leave, and an account that left its last organisation gets a new one', async () => {
    const owner = await api.member();
    for (const role of ['admin', 'member', 'billing', 'owner'] as const) {
      const who = await api.member({ org_id: owner.org_id, role });
      assert.equal((await api.as(who).delete(path(owner.org_id, who.user_id))).status, 204);
      const { body } = await api.as(who).get<Page<{ id: OrgId; name: string }>>('/v1/orgs');
      assert.equal(body.data.length, 1);
      assert.equal(body.data[0]?.name, 'Test Person');
      assert.deepEqual(await rolesOf(body.data[0]?.id ?? owner.org_id), { [who.user_id]: 'owner' });
    }
    assert.deepEqual(await rolesOf(owner.org_id), { [owner.user_id]: 'owner' });
  });

  test('an account that leaves its last two organisations concurrently gets a new one too', async () => {
    const [first, second] = [await api.member(), await api.member()];
    const who = await api.member({ org_id: first.org_id, role: 'member' });
    const { user_id } = who;
    await db.insertInto('memberships').values({ org_id: second.org_id, user_id, role: 'member' }).execute();
    const leave = (owner: Person) => () => api.as(owner).delete(path(owner.org_id, user_id));
    for (const { status, text } of await allBeforeAnyCommits(db, [leave(first), leave(second)])) {
      assert.equal(status, 204, text);
    }
    assert.equal((await api.as(who).get('/v1/me')).status, 200);
  });

  test('an otherwise empty organisation is deleted with its last owner', async () => {
    const ann = await api.member();
    const made = await api.as(ann).post<{ id: OrgId }>('/v1/orgs', { name: 'short-lived' });
    const answer = await api.as(ann).delete(path(made.body.id, ann.user_id));
    assert.equal(answer.status, 204, answer.text);
    assertError(await api.as(ann).get(`/v1/orgs/${made.body.id}`), 'NOT_FOUND');
  });
});

describe('400', () => {
  test('bad roles, unknown fields, bad pages', async () => {
    const owner = await api.member();
    const member = await api.member({ org_id: owner.org_id, role: 'member' });
    for (const body of [{}, { role: 'root' }, { role: ['owner'] }, { role: 'admin', name: 'x' }]) {
      assertError(await api.as(owner).patch(path(owner.org_id, member.user_id), body), 'INVALID_REQUEST');
    }
    assertError(await api.as(owner).delete(path(owner.org_id, member.user_id), { a: 1 }), 'INVALID_REQUEST');
    for (const query of ['limit=0', 'limit=201', 'cursor=x', 'role=owner']) {
      assertError(await api.as(owner).get(`${path(owner.org_id)}?${query}`), 'INVALID_REQUEST');
    }
  });
});

describe('401', () => {
  test('no credential', async () => {
    for (const [method, id] of [
      ['GET', ''],
      ['GET', newId('usr')],
      ['PATCH', newId('usr')],
      ['DELETE', newId('usr')],
    ] as const) {
      assertError(await api.client.call(method, path(newId('org'), id)), 'UNAUTHENTICATED');
    }
  });
});

describe('403', () => {
  test('members and billing neither list, change nor remove, before the body is looked at', async () => {
    const owner = await api.member();
    for (const role of ['member', 'billing'] as const) {
      const who = await api.member({ org_id: owner.org_id, role });
      assertError(await api.as(who).get(path(owner.org_id)), 'FORBIDDEN');
      assertError(await api.as(who).get(path(owner.org_id, owner.user_id)), 'FORBIDDEN');
      assertError(await api.as(who).patch(path(owner.org_id, owner.user_id), { colour: 1 }), 'FORBIDDEN');
      assertError(await api.as(who).patch(path(owner.org_id, who.user_id), { role: 'admin' }), 'FORBIDDEN');
      assertError(await api.as(who).delete(path(owner.org_id, owner.user_id)), 'FORBIDDEN');
    }
  });

  test('no key, not even an owner’s with *', async () => {
    const owner = await api.member();
    const { key } = await api.key({ org_id: owner.org_id, user_id: owner.user_id }, '*');
    assertError(await api.as(key).get(path(owner.org_id)), 'FORBIDDEN');
    assertError(await api.as(key).patch(path(owner.org_id, owner.user_id), { role: 'admin' }), 'FORBIDDEN');
    assertError(await api.as(key).delete(path(owner.org_id, owner.user_id)), 'FORBIDDEN');
  });

  test('an administrator neither appoints nor removes an owner', async () => {
    const owner = await api.member();
    const admin = await api.member({ org_id: owner.org_id, role: 'admin' });
    await api.member({ org_id: owner.org_id, role: 'owner' });
    const as = api.as(admin);
    assertError(
      await as.patch(path(owner.org_id, admin.user_id), { role: 'owner' }),
      'FORBIDDEN',
      /Only an owner/,
    );
    assertError(
      await as.patch(path(owner.org_id, owner.user_id), { role: 'member' }),
      'FORBIDDEN',
      /Only an owner/,
    );
    assertError(await as.delete(path(owner.org_id, owner.user_id)), 'FORBIDDEN', /Only an owner/);
  });
});

describe('404', () => {
  test('a user who is not a member, an unknown user, a malformed id and another organisation get the same answer', async () => {
    const owner = await api.member();
    const stranger = await api.member();
    const answers = [];
    for (const id of [stranger.user_id, newId('usr'), 'nonsense']) {
      answers.push(
        await api.as(owner).get(path(owner.org_id, id)),
        await api.as(owner).patch(path(owner.org_id, id), { role: 'member' }),
        await api.as(owner).delete(path(owner.org_id, id)),
        await api.as(owner).get(path(stranger.org_id, stranger.user_id)),
        await api.as(owner).patch(path(stranger.org_id, stranger.user_id), { role: 'owner' }),
        await api.as(owner).delete(path(stranger.org_id, owner.user_id)),
        await api.as(owner).get(path(stranger.org_id)),
      );
    }
    for (const answer of answers) {
      assertError(answer, 'NOT_FOUND');
      assert.deepEqual(withoutRequestId(answer), withoutRequestId(answers[0] ?? answer));
    }
  });
});

describe('409', () => {
  test('the last owner is neither demoted nor removed while there are other members or instances; the message says what helps', async () => {
    const owner = await api.member();
    const admin = await api.member({ org_id: owner.org_id, role: 'admin' });
    const own = path(owner.org_id, owner.user_id);
    assertError(
      await api.as(owner).patch(own, { role: 'admin' }),
      'CONFLICT',
      /Make another member owner first/,
    );
    assertError(
      await api.as(owner).delete(own),
      'CONFLICT',
      /remove its other members and delete its instances/,
    );
    await api.as(owner).delete(path(owner.org_id, admin.user_id));
    assertError(await api.as(owner).patch(own, { role: 'admin' }), 'CONFLICT');
    const instance_id = await makeInstance(db, owner.org_id);
    assertError(await api.as(owner).delete(own), 'CONFLICT', /delete its instances/);
    await db.deleteFrom('instances').where('id', '=', instance_id).execute();
    assert.equal((await api.as(owner).delete(own)).status, 204);
  });

  test('concurrent demotions, removals and departures of all owners leave one', async () => {
    for (let round = 0; round < 3; round++) {
      const first = await api.member();
      const { org_id } = first;
      const owners: Person[] = [first];
      for (let i = 0; i < 5; i++) owners.push(await api.member({ org_id, role: 'owner' }));
      const answers = await Promise.all(
        owners.flatMap((owner, i) => {
          const next = owners[(i + 1) % owners.length] ?? first;
          return [
            api.as(owner).patch(path(org_id, owner.user_id), { role: 'member' }),
            api.as(owner).patch(path(org_id, next.user_id), { role: 'admin' }),
            api.as(owner).delete(path(org_id, next.user_id)),
            api.as(owner).delete(path(org_id, owner.user_id)),
          ];
        }),
      );
      const statuses = new Set(answers.map((answer) => answer.status));
      for (const status of statuses)
        assert.ok([200, 204, 403, 404, 409].includes(status), [...statuses].join());
      const left = await db.selectFrom('organisations').select('id').where('id', '=', org_id).execute();
      const roles = Object.values(await rolesOf(org_id));
      if (left.length > 0) assert.ok(roles.includes('owner'), roles.join());
    }
  });
});

describe('412', () => {
  test('a membership that has changed since is neither changed nor ended', async () => {
    const owner = await api.member();
    const member = await api.member({ org_id: owner.org_id, role: 'member' });
    const one = path(owner.org_id, member.user_id);
    const headers = { 'if-match': String((await api.as(owner).get(one)).headers['etag']) };
    assert.equal(
      (await api.as(owner).call('PATCH', one, { json: { role: 'billing' }, headers })).status,
      200,
    );
    assertError(
      await api.as(owner).call('PATCH', one, { json: { role: 'admin' }, headers }),
      'PRECONDITION_FAILED',
    );
    assertError(await api.as(owner).call('DELETE', one, { headers }), 'PRECONDITION_FAILED');
  });
});
