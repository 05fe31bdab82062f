/** Until somebody has proved that an address is theirs, its account gets nothing that outlasts a reset by the address's owner. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { createFirstAdministrator } from '../../src/control-plane/identity/accounts.ts';
import { newId, type UserId } from '../../src/shared/ids.ts';
import { apiForFile, type TestApi } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { makeMailFolder } from '../support/mail-folder.ts';
import { mailNotificationsOfEvents, notificationsOf } from '../support/notifications.ts';
import { makeKey, makePerson, makeSshKey, type Person, randomPublicKey } from '../support/people.ts';

const mail = await makeMailFolder();
const api = await apiForFile({ context: { has_smtp: true, signups: 'open' } });
const without_smtp = await apiForFile({ context: { has_smtp: false, signups: 'open' } });
for (const { db, context } of [api, without_smtp]) mail.collectFrom({ db, mailbox: context.mailbox });
after(() => mail.close());
const { db } = api;
const PASSWORD = 'correct horse battery';
const NEW = 'another good password';
const newAddress = () => `${newId('usr')}@example.org`;

interface User {
  readonly id: UserId;
  readonly email: string;
  readonly email_confirmed: boolean;
}

async function register(email: string, of: TestApi = api, body: Record<string, unknown> = {}) {
  const answer = await of.client.post<{ user: User; session_token: string }>('/v1/auth/register', {
    email,
    password: PASSWORD,
    ...body,
  });
  assert.equal(answer.status, 201, answer.text);
  return { ...answer.body.user, session: answer.body.session_token };
}
const me = async (session: string, of: TestApi = api) => (await of.as(session).get<User>('/v1/me')).body;
const confirm = (session: string, token: string) => api.as(session).post('/v1/me/email/confirm', { token });
const makeApiKey = (session: string, of: TestApi = api, body: unknown = { name: 'k', scope: 'vm:read' }) =>
  of.as(session).post('/v1/api-keys', body);
const addSshKey = (session: string, of: TestApi = api, body?: unknown) =>
  of.as(session).post('/v1/me/ssh-keys', body ?? { name: 'laptop', public_key: randomPublicKey().line });

async function invitationOf(email: string, of: TestApi = api): Promise<string> {
  const owner = await of.person();
  const path = `/v1/orgs/${owner.org_id}/invitations`;
  const made = await of.as(owner).post(path, { email, role: 'member' });
  assert.equal(made.status, 201, made.text);
  const token = /^berth_mail_\w+$/m.exec(of.mails.at(-1)?.text ?? '')?.[0];
  return token ?? assert.fail('no token');
}

async function reset(email: string, body: Record<string, unknown> = {}, already = 0): Promise<void> {
  assert.equal((await api.client.post('/v1/auth/password-reset', { email })).status, 202);
  const token = await mail.token(email, already);
  const answer = await api.client.post('/v1/auth/password-reset/confirm', {
    token,
    new_password: NEW,
    ...body,
  });
  assert.deepEqual([answer.status, answer.text], [204, '']);
}

async function waysInOf(user_id: UserId) {
  const count = async (table: 'api_keys' | 'ssh_keys' | 'mfa_factors' | 'recovery_codes') => {
    const rows = await db.selectFrom(table).select('user_id').where('user_id', '=', user_id).execute();
    return rows.length;
  };
  return {
    api_keys: await count('api_keys'),
    ssh_keys: await count('ssh_keys'),
    factors: await count('mfa_factors'),
    recovery_codes: await count('recovery_codes'),
  };
}
const NONE = { api_keys: 0, ssh_keys: 0, factors: 0, recovery_codes: 0 };

/** A confirmed factor, with recovery codes. */
async function addFactor({ user_id }: Pick<Person, 'user_id'>): Promise<void> {
  const id = newId('mfa');
  const secret = api.context.factors.seal('JBSWY3DPEHPK3PXP', id);
  const factor = { id, user_id, type: 'totp' as const, name: 'phone', secret, confirmed_at: new Date() };
  await db.insertInto('mfa_factors').values(factor).execute();
  await db
    .insertInto('recovery_codes')
    .values({ user_id, code_hash: Buffer.alloc(32) })
    .execute();
}

describe('a new account', () => {
  test('gets a token by mail, which confirms only this account, once', async () => {
    const email = newAddress();
    const who = await register(email);
    assert.equal(who.email_confirmed, false);
    assert.equal((await me(who.session)).email_confirmed, false);
    const token = await mail.token(email);
    const other = await register(newAddress());
    assertError(await confirm(other.session, token), 'INVALID_REQUEST', /token/);
    const answer = await confirm(who.session, token);
    assert.deepEqual([answer.status, answer.text], [204, '']);
    assert.equal((await me(who.session)).email_confirmed, true);
    assertError(await confirm(who.session, token), 'INVALID_REQUEST', /token/);
    assert.equal((await makeApiKey(who.session)).status, 201);
    assert.equal((await addSshKey(who.session)).status, 201);
    const login = await api.client.post<{ user: User }>('/v1/auth/login', { email, password: PASSWORD });
    assert.equal(login.body.user.email_confirmed, true);
  });

  test('creates no API key and no SSH key until then: 403, before other errors', async () => {
    const { session } = await register(newAddress());
    for (const answer of [
      await makeApiKey(session),
      await makeApiKey(session, api, { nonsense: true }),
      await addSshKey(session),
      await addSshKey(session, api, { nonsense: true }),
    ]) {
      assertError(answer, 'FORBIDDEN', /not confirmed/);
    }
  });

  test('invites nobody until then, so no stranger gets its mail or access through it', async () => {
    const { session } = await register(newAddress());
    const orgs = await api.as(session).get<{ data: { id: string }[] }>('/v1/orgs');
    const invitation = { email: newAddress(), role: 'admin' };
    const answer = await api.as(session).post(`/v1/orgs/${orgs.body.data[0]?.id}/invitations`, invitation);
    assertError(answer, 'FORBIDDEN', /not confirmed/);
  });

  test('creates no key for its service accounts either', async () => {
    const { session } = await register(newAddress());
    const made = await api
      .as(session)
      .post<{ id: string }>('/v1/service-accounts', { name: 'robot', scope: 'vm:read' });
    const body = { name: 'k', scope: 'vm:read', service_account_id: made.body.id };
    assertError(await makeApiKey(session, api, body), 'FORBIDDEN', /not confirmed/);
  });

  test('accepts no invitation of its address until then, and the invitation stays valid', async () => {
    const email = newAddress();
    const { session } = await register(email);
    const token = await invitationOf(email);
    const accept = () => api.as(session).post('/v1/invitations/accept', { token });
    assertError(await accept(), 'FORBIDDEN', /not confirmed/);
    assert.equal((await confirm(session, await mail.token(email))).status, 204);
    assert.equal((await accept()).status, 200);
  });

  test('gets a new token for its password and the same address; the old one is void', async () => {
    const email = newAddress();
    const { session } = await register(email);
    const first = await mail.token(email);
    const again = await api.as(session).put('/v1/me/email', { email, password: PASSWORD });
    assert.deepEqual([again.status, again.text], [202, '']);
    const second = await mail.token(email, 1);
    assertError(await confirm(session, first), 'INVALID_REQUEST');
    assert.equal((await confirm(session, second)).status, 204);
    assert.equal((await mail.to(email)).length, 2, 'nothing tells of a change');
  });

  test("may confirm another address instead; the old one, perhaps a stranger's, gets no mail", async () => {
    const [stranger, email] = [newAddress(), newAddress()];
    const { session } = await register(stranger);
    await mail.token(stranger);
    await api.as(session).put('/v1/me/email', { email, password: PASSWORD });
    assert.equal((await confirm(session, await mail.token(email))).status, 204);
    const now = await me(session);
    assert.deepEqual([now.email, now.email_confirmed], [email, true]);
    assert.equal((await mail.to(stranger)).length, 1);
  });

  test('gets no notification by mail until then', async () => {
    const [email, confirmed] = [newAddress(), await api.person({ password: PASSWORD })];
    const { session } = await register(email);
    await mail.token(email);
    const change = { current_password: PASSWORD, new_password: NEW };
    for (const who of [session, confirmed])
      assert.equal((await api.as(who).post('/v1/auth/password', change)).status, 204);
    await mailNotificationsOfEvents(db, mail.deliver);
    assert.deepEqual([(await mail.to(email)).length, (await mail.to(confirmed.email)).length], [1, 1]);
    assert.equal((await notificationsOf(api.as(session)))[0]?.kind, 'password.changed');
  });

  test('by an invitation is confirmed: its token went to the address', async () => {
    const email = newAddress();
    const token = await invitationOf(email);
    const who = await register(email, api, { invitation_token: token });
    assert.equal(who.email_confirmed, true);
    assert.equal((await makeApiKey(who.session)).status, 201);
    const sent = api.mails.filter(({ to }) => to === email);
    assert.equal(sent.length, 1, 'the invitation, and no confirmation');
  });

  test('without SMTP is confirmed, and gets no mail', async () => {
    const email = newAddress();
    const who = await register(email, without_smtp);
    assert.equal(who.email_confirmed, true);
    assert.equal((await makeApiKey(who.session, without_smtp)).status, 201);
    assert.equal((await addSshKey(who.session, without_smtp)).status, 201);
    assert.deepEqual(await mail.to(email), []);
    const stored = await without_smtp.db
      .selectFrom('users')
      .select('email_confirmed')
      .where('email', '=', email)
      .executeTakeFirst();
    assert.equal(stored?.email_confirmed, true, 'also once there is SMTP');
  });

  test('that waits for its confirmation counts as confirmed while there is no SMTP', async () => {
    const who = await makePerson(without_smtp.db, { email_confirmed: false });
    assert.equal((await me(who.session, without_smtp)).email_confirmed, true);
    assert.equal((await makeApiKey(who.session, without_smtp)).status, 201);
  });
});

describe('a password reset', () => {
  test('of an address that somebody else registered ends their sessions, factors and keys', async () => {
    const email = newAddress();
    const squatter = await register(email);
    await addFactor({ user_id: squatter.id });
    await reset(email, {}, 1);
    assert.deepEqual(await waysInOf(squatter.id), NONE);
    assertError(await api.as(squatter.session).get('/v1/me'), 'UNAUTHENTICATED');
    const login = await api.client.post<{ user: User; session_token: string }>('/v1/auth/login', {
      email,
      password: NEW,
    });
    assert.equal(login.status, 200, 'no factor is asked for');
    assert.equal(login.body.user.email_confirmed, true, 'the token proved the address');
    assert.equal((await makeApiKey(login.body.session_token)).status, 201);
    await mailNotificationsOfEvents(db, mail.deliver);
    const [told = ''] = (await mail.to(email)).filter((text) => text.includes('Your password was changed'));
    assert.match(told.replaceAll('\n', ' '), /somebody else may have created this account/);
  });

  test('reports how many API keys, SSH keys and factors remain: by mail, notification and audit log', async () => {
    const who = await api.person({ password: PASSWORD });
    for (let made = 0; made < 2; made += 1) await makeKey(db, who, 'vm:read');
    await makeKey(db, who, 'vm:read', new Date(Date.now() - 1_000));
    await makeSshKey(db, who.user_id);
    await addFactor(who);
    await reset(who.email);
    const remaining = { api_keys: 2, ssh_keys: 1, factors: 1 };
    await mailNotificationsOfEvents(db, mail.deliver);
    const [told = ''] = (await mail.to(who.email)).filter((text) =>
      text.includes('Your password was changed'),
    );
    assert.match(told.replaceAll('\n', ' '), /2 API keys, 1 SSH key, 1 second factor\b/);
    const row = await db
      .selectFrom('notifications')
      .select('data')
      .where('recipient', '=', who.user_id)
      .where('kind', '=', 'password.changed')
      .executeTakeFirstOrThrow();
    assert.deepEqual((row.data as { remaining?: unknown }).remaining, remaining);
    const entry = await db
      .selectFrom('audit_log')
      .select('data')
      .where('org_id', '=', who.org_id)
      .where('action', '=', 'auth.reset_password')
      .executeTakeFirstOrThrow();
    assert.deepEqual(entry.data, { removed: null, remaining });
    assert.equal((await waysInOf(who.user_id)).api_keys, 3, 'nothing was removed');
  });

  test('with revoke_all removes them in every organisation, with a notification for each', async () => {
    const who = await api.person({ password: PASSWORD });
    const elsewhere = await api.person();
    await db
      .insertInto('memberships')
      .values({ org_id: elsewhere.org_id, user_id: who.user_id, role: 'member' })
      .execute();
    await makeKey(db, who, 'vm:read');
    const { key } = await makeKey(db, { ...who, org_id: elsewhere.org_id }, 'org:read');
    await makeSshKey(db, who.user_id);
    await makeSshKey(db, who.user_id);
    await addFactor(who);
    assert.equal((await api.as(key).get(`/v1/orgs/${elsewhere.org_id}`)).status, 200);
    await reset(who.email, { revoke_all: true });
    assert.deepEqual(await waysInOf(who.user_id), NONE);
    assertError(await api.as(key).get(`/v1/orgs/${elsewhere.org_id}`), 'UNAUTHENTICATED');
    const events = await db
      .selectFrom('events')
      .select('type')
      .where('actor', '=', who.user_id)
      .where('type', 'in', ['api_key.revoked', 'ssh_key.revoked', 'mfa.removed'])
      .execute();
    assert.deepEqual(events.map(({ type }) => type).sort(), [
      'api_key.revoked',
      'api_key.revoked',
      'mfa.removed',
      'ssh_key.revoked',
      'ssh_key.revoked',
    ]);
    const entries = await db
      .selectFrom('audit_log')
      .select('org_id')
      .where('actor', '=', who.user_id)
      .where('action', '=', 'ssh_key.revoke')
      .execute();
    assert.equal(entries.length, 2);
    const login = await api.client.post('/v1/auth/login', { email: who.email, password: NEW });
    assert.equal(login.status, 200);
  });

  test('with a revoke_all that is not a boolean changes nothing: 400', async () => {
    const who = await api.person({ password: PASSWORD });
    await api.client.post('/v1/auth/password-reset', { email: who.email });
    const body = { token: await mail.token(who.email), new_password: NEW, revoke_all: 'yes' };
    assertError(await api.client.post('/v1/auth/password-reset/confirm', body), 'INVALID_REQUEST');
    assert.equal((await api.as(who).get('/v1/me')).status, 200);
  });
});

describe('an invitation', () => {
  const invite = async (of: TestApi, headers = {}) => {
    const owner = await of.person();
    const email = newAddress();
    const path = `/v1/orgs/${owner.org_id}/invitations`;
    const post = () =>
      of.as(owner).post<{ accept_url?: string }>(path, { email, role: 'admin' }, { headers });
    return { owner, email, path, post };
  };

  test('without SMTP returns its link with no-store, and again only for the same Idempotency-Key', async () => {
    const { owner, email, path, post } = await invite(without_smtp, { 'idempotency-key': 'once' });
    const made = await post();
    assert.equal(made.status, 201, made.text);
    assert.equal(made.headers['cache-control'], 'no-store');
    const token = /^http:\/\/127\.0\.0\.1\/invitation#token=(berth_mail_\w+)$/.exec(
      made.body.accept_url ?? '',
    )?.[1];
    const again = await post();
    assert.deepEqual(again.body, made.body);
    assert.deepEqual(
      [again.headers['idempotency-replayed'], again.headers['cache-control']],
      ['true', 'no-store'],
    );
    const list = await without_smtp.as(owner).get(path);
    const kept = JSON.stringify([
      list.body,
      await without_smtp.db.selectFrom('invitations').selectAll().execute(),
      await without_smtp.db.selectFrom('audit_log').selectAll().execute(),
    ]);
    assert.ok(token !== undefined && !kept.includes(token));
    const who = await register(email, without_smtp, { invitation_token: token });
    assert.equal((await without_smtp.as(who.session).get(`/v1/orgs/${owner.org_id}`)).status, 200);
  });

  test('with SMTP returns no link, because the token proves the address', async () => {
    const { post } = await invite(api);
    const made = await post();
    assert.deepEqual(Object.keys(made.body).sort(), ['email', 'expires_at', 'id', 'role']);
  });
});

test('the first administrator is confirmed', async () => {
  const empty = await apiForFile({ context: { has_smtp: true } });
  assert.ok(await createFirstAdministrator(empty.db, 'admin@localhost', PASSWORD));
  const login = await empty.client.post<{ user: User; session_token: string }>('/v1/auth/login', {
    email: 'admin@localhost',
    password: PASSWORD,
  });
  assert.equal(login.body.user.email_confirmed, true);
  assert.equal((await makeApiKey(login.body.session_token, empty)).status, 201);
});
