/** Invitations: /v1/orgs/:id/invitations and their acceptance, one describe a status. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { hashToken } from '../../src/control-plane/identity/tokens.ts';
import { findInvitation } from '../../src/control-plane/organisations/invitations.ts';
import { type InvitationId, newId, type OrgId } from '../../src/shared/ids.ts';
import type { Role } from '../../src/shared/roles.ts';
import { accessApiForFile, auditOf, eventsOf, tokenOf } from '../support/access-api.ts';
import type { Page } from '../support/client.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import type { Person } from '../support/people.ts';

// By SMTP: without it the answer has the token too.
const api = await accessApiForFile({ has_smtp: true });
const { db } = api;
const ACCEPT = '/v1/invitations/accept';

interface Invitation {
  readonly id: InvitationId;
  readonly email: string;
  readonly role: Role;
  readonly expires_at: string;
}

const path = (org_id: string, id = '') => `/v1/orgs/${org_id}/invitations${id && `/${id}`}`;

/** Invites and answers the invitation with the token of its mail. */
async function invite(who: Person, email: string, role: Role = 'member') {
  const answer = await api.as(who).post<Invitation>(path(who.org_id), { email, role });
  assert.equal(answer.status, 201, answer.text);
  const mail = api.mails.findLast((each) => each.to === email);
  return { ...answer.body, token: tokenOf(mail) };
}

async function expire(id: InvitationId): Promise<void> {
  await db
    .updateTable('invitations')
    .set({ expires_at: new Date(Date.now() - 1) })
    .where('id', '=', id)
    .execute();
}

describe('201', () => {
  test('the token is sent by mail only, hashed at rest, and valid for seven days', async () => {
    const owner = await api.member();
    const answer = await api
      .as(owner)
      .post<Invitation>(path(owner.org_id), { email: 'New@example.org', role: 'admin' });
    assert.equal(answer.status, 201, answer.text);
    assert.deepEqual(Object.keys(answer.body), ['id', 'email', 'role', 'expires_at']);
    const days = (Date.parse(answer.body.expires_at) - Date.now()) / 86_400_000;
    assert.ok(days > 6.99 && days <= 7, `${days}`);
    const mail = api.mails.at(-1);
    assert.equal(mail?.to, 'New@example.org');
    const token = tokenOf(mail);
    const row = await db
      .selectFrom('invitations')
      .selectAll()
      .where('id', '=', answer.body.id)
      .executeTakeFirstOrThrow();
    assert.deepEqual(row.token_hash, hashToken(token));
    const everything = JSON.stringify([answer.body, row, await auditOf(db, owner.org_id)]);
    assert.ok(!everything.includes(token));
    assert.deepEqual((await auditOf(db, owner.org_id))[0]?.action, 'invitation.create');
  });

  test('a replayed Idempotency-Key neither invites nor sends again', async () => {
    const owner = await api.member();
    const headers = { 'idempotency-key': 'k' };
    const json = { email: 'once@example.org', role: 'member' };
    const first = await api.as(owner).post(path(owner.org_id), json, { headers });
    const sent = api.mails.length;
    const second = await api.as(owner).post(path(owner.org_id), json, { headers });
    assert.equal(second.status, 201);
    assert.deepEqual(second.body, first.body);
    assert.equal(api.mails.length, sent);
  });

  test('an address may be invited again after its invitation has expired or was withdrawn', async () => {
    const owner = await api.member();
    const first = await invite(owner, 'again@example.org');
    await expire(first.id);
    const second = await invite(owner, 'again@example.org');
    assert.equal((await api.as(owner).delete(path(owner.org_id, second.id))).status, 204);
    await invite(owner, 'again@example.org');
  });
});

describe('200', () => {
  test('accepting makes the account a member with the role, once', async () => {
    const owner = await api.member();
    const guest = await api.member({ email: 'Guest@Example.org' });
    const { token } = await invite(owner, 'guest@example.org', 'admin');
    const answer = await api.as(guest).post<{ id: OrgId }>(ACCEPT, { token });
    assert.equal(answer.status, 200, answer.text);
    assert.deepEqual(Object.keys(answer.body), ['id', 'name', 'billing_email', 'created_at', 'operator']);
    assert.equal(answer.body.id, owner.org_id);
    const members = await api.as(guest).get<Page<{ id: string }>>(`/v1/orgs/${owner.org_id}/members`);
    assert.deepEqual(
      members.body.data.map((member) => member.id),
      [guest.user_id, owner.user_id],
    );
    assert.deepEqual(
      (await eventsOf(db, owner.org_id)).map((event) => [event.type, event.actor]),
      [['member.added', guest.user_id]],
    );
    assert.equal((await auditOf(db, owner.org_id)).at(-1)?.action, 'invitation.accept');
    assertError(await api.as(guest).post(ACCEPT, { token }), 'NOT_FOUND');
    assert.equal(await findInvitation(db, token), undefined);
  });

  test('of 30 concurrent acceptances one creates the member', async () => {
    const owner = await api.member();
    const guest = await api.member();
    const { token } = await invite(owner, guest.email);
    const answers = await Promise.all(
      Array.from({ length: 30 }, () => api.as(guest).post(ACCEPT, { token })),
    );
    const statuses = answers.map((answer) => answer.status).sort();
    assert.equal(statuses.filter((status) => status === 200).length, 1, statuses.join());
    assert.ok(
      statuses.every((status) => [200, 404, 409].includes(status)),
      statuses.join(),
    );
    const events = await eventsOf(db, owner.org_id);
    assert.deepEqual(
      events.map((event) => event.type),
      ['member.added'],
    );
    const rows = await db.selectFrom('memberships').selectAll().where('org_id', '=', owner.org_id).execute();
    assert.equal(rows.length, 2);
  });

  test('a list has the open invitations, newest first, page by page, never the token', async () => {
    const owner = await api.member();
    const made = [];
    for (const name of ['a', 'b', 'c', 'd']) made.unshift(await invite(owner, `${name}@example.org`));
    const [expired, ...open] = made;
    await expire(expired?.id ?? newId('inv'));
    const first = await api.as(owner).get<Page<Invitation>>(`${path(owner.org_id)}?limit=2`);
    const rest = await api
      .as(owner)
      .get<Page<Invitation>>(`${path(owner.org_id)}?limit=2&cursor=${first.body.next_cursor}`);
    const listed = [...first.body.data, ...rest.body.data];
    assert.deepEqual(
      listed.map((each) => each.id),
      open.map((each) => each.id),
    );
    assert.deepEqual(Object.keys(listed[0] ?? {}), [
      'id',
      'email',
      'role',
      'expires_at',
      'invited_by',
      'created_at',
    ]);
  });
});

describe('204', () => {
  test('a withdrawn invitation is not accepted', async () => {
    const owner = await api.member();
    const guest = await api.member();
    const { id, token } = await invite(owner, guest.email);
    assert.equal((await api.as(owner).delete(path(owner.org_id, id))).status, 204);
    assertError(await api.as(guest).post(ACCEPT, { token }), 'NOT_FOUND');
    assertError(await api.as(owner).delete(path(owner.org_id, id)), 'NOT_FOUND');
  });
});

describe('400', () => {
  test('bad addresses and roles, unknown fields, bad pages, no token', async () => {
    const owner = await api.member();
    const bodies = [
      {},
      { email: 'a@b.c' },
      { role: 'member' },
      { email: 'nobody', role: 'member' },
      { email: 'a@b.c\nBcc: d@e.f', role: 'member' },
      { email: 'a@b.c', role: 'root' },
      { email: 'a@b.c', role: 'member', token: 'x' },
    ];
    for (const body of bodies)
      assertError(await api.as(owner).post(path(owner.org_id), body), 'INVALID_REQUEST');
    for (const query of ['limit=0', 'limit=201', 'cursor=x', 'email=x']) {
      assertError(await api.as(owner).get(`${path(owner.org_id)}?${query}`), 'INVALID_REQUEST');
    }
    for (const body of [{}, { token: '' }, { token: 1 }, { token: 'x', org_id: owner.org_id }]) {
      assertError(await api.as(owner).post(ACCEPT, body), 'INVALID_REQUEST');
    }
  });
});

describe('401', () => {
  test('no credential', async () => {
    const org_id = newId('org');
    assertError(await api.client.get(path(org_id)), 'UNAUTHENTICATED');
    assertError(await api.client.post(path(org_id), {}), 'UNAUTHENTICATED');
    assertError(await api.client.delete(path(org_id, newId('inv'))), 'UNAUTHENTICATED');
    assertError(await api.client.post(ACCEPT, { token: 'x' }), 'UNAUTHENTICATED');
  });
});

describe('403', () => {
  test('members, billing and keys, before the body is looked at', async () => {
    const owner = await api.member();
    const { id } = await invite(owner, 'x@example.org');
    const member = await api.member({ org_id: owner.org_id, role: 'member' });
    const billing = await api.member({ org_id: owner.org_id, role: 'billing' });
    const { key } = await api.key({ org_id: owner.org_id, user_id: owner.user_id }, '*');
    for (const who of [member, billing, key]) {
      assertError(await api.as(who).post(path(owner.org_id), { colour: 1 }), 'FORBIDDEN');
      assertError(await api.as(who).get(path(owner.org_id)), 'FORBIDDEN');
      assertError(await api.as(who).delete(path(owner.org_id, id)), 'FORBIDDEN');
    }
    assertError(await api.as(key).post(ACCEPT, { token: 'x' }), 'FORBIDDEN');
  });

  test('only an owner invites an owner', async () => {
    const owner = await api.member();
    const admin = await api.member({ org_id: owner.org_id, role: 'admin' });
    const body = { email: 'boss@example.org', role: 'owner' };
    assertError(await api.as(admin).post(path(owner.org_id), body), 'FORBIDDEN', /Only an owner/);
    await invite(owner, 'boss@example.org', 'owner');
  });
});

describe('404', () => {
  test('an expired or invented token, of another address or another kind, gets the same answer', async () => {
    const owner = await api.member();
    const guest = await api.member();
    const thief = await api.member();
    const late = await invite(owner, guest.email);
    await expire(late.id);
    const live = await invite(owner, guest.email);
    const made_up = live.token.slice(0, -1) + (live.token.endsWith('0') ? '1' : '0');
    const answers = [
      await api.as(guest).post(ACCEPT, { token: 'x' }),
      await api.as(guest).post(ACCEPT, { token: made_up }),
      await api.as(guest).post(ACCEPT, { token: late.token }),
      await api.as(guest).post(ACCEPT, { token: guest.session }),
      await api.as(thief).post(ACCEPT, { token: live.token }),
    ];
    for (const answer of answers) {
      assertError(answer, 'NOT_FOUND');
      assert.deepEqual(withoutRequestId(answer), withoutRequestId(answers[0] ?? answer));
    }
    assert.equal(
      (await api.as(guest).post(ACCEPT, { token: live.token })).status,
      200,
      'another’s try used nothing up',
    );
  });

  test('another organisation and its invitations', async () => {
    const owner = await api.member();
    const other = await api.member();
    const { id } = await invite(owner, 'x@example.org');
    const body = { email: 'y@example.org', role: 'owner' };
    assertError(await api.as(other).post(path(owner.org_id), body), 'NOT_FOUND');
    assertError(await api.as(other).get(path(owner.org_id)), 'NOT_FOUND');
    for (const [org_id, each] of [
      [owner.org_id, id],
      [other.org_id, id],
      [other.org_id, newId('inv')],
      [other.org_id, 'nonsense'],
    ] as const) {
      assertError(await api.as(other).delete(path(org_id, each)), 'NOT_FOUND');
    }
  });
});

describe('409', () => {
  test('a member is neither invited nor added again', async () => {
    const owner = await api.member();
    const guest = await api.member();
    const { token } = await invite(owner, guest.email);
    await db
      .insertInto('memberships')
      .values({ org_id: owner.org_id, user_id: guest.user_id, role: 'billing' })
      .execute();
    assertError(
      await api.as(guest).post(ACCEPT, { token }),
      'CONFLICT',
      /a member of this organisation already/,
    );
    const body = { email: guest.email.toUpperCase(), role: 'member' };
    assertError(await api.as(owner).post(path(owner.org_id), body), 'CONFLICT', /member already/);
  });

  test('an address that is already invited; the message names the invitation', async () => {
    const owner = await api.member();
    const { id } = await invite(owner, 'twice@example.org');
    const body = { email: 'Twice@example.org', role: 'member' };
    assertError(await api.as(owner).post(path(owner.org_id), body), 'CONFLICT', new RegExp(id));
    const parallel = Array.from({ length: 10 }, () =>
      api.as(owner).post(path(owner.org_id), { email: 'crowd@example.org', role: 'member' }),
    );
    const statuses = (await Promise.all(parallel)).map((answer) => answer.status).sort();
    assert.deepEqual(statuses, [201, ...Array(9).fill(409)]);
  });
});
