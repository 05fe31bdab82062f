/** Register: closed unless the installation or an invitation opens it. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { apiForFile, newName } from '../support/api.ts';
import { setCookieOf } from '../support/cookies.ts';
import { assertError } from '../support/expect.ts';

const closed = await apiForFile();
const open = await apiForFile({ context: { signups: 'open' } });
const PASSWORD = 'correct horse battery';

interface Registered {
  readonly user: { id: string; email: string; name: string; mfa_enabled: boolean };
  readonly session_token: string;
  readonly expires_at: string;
}
const newEmail = () => `${newName()}@example.org`;

function register(api: typeof closed, body: Record<string, unknown>, headers = {}) {
  const json = { email: newEmail(), password: PASSWORD, ...body };
  return api.client.post<Registered>('/v1/auth/register', json, { headers });
}

async function invitation(api: typeof closed, email: string) {
  const owner = await api.person();
  const made = await api.as(owner).post(`/v1/orgs/${owner.org_id}/invitations`, { email, role: 'member' });
  assert.equal(made.status, 201, made.text);
  const token = /^berth_mail_\w+$/m.exec(api.mails.at(-1)?.text ?? '')?.[0];
  assert.ok(token);
  return { owner, token };
}

describe('201', () => {
  test('an open registration creates an account with a session, the refresh cookie, and an organisation', async () => {
    const email = newEmail();
    const answer = await register(open, { email, name: 'Ann' });
    assert.equal(answer.status, 201, answer.text);
    const { user, session_token } = answer.body;
    assert.deepEqual([user.email, user.name, user.mfa_enabled], [email, 'Ann', false]);
    assert.equal(setCookieOf(answer).name, '__Host-berth_refresh');
    assert.equal(answer.headers['cache-control'], 'no-store');
    const orgs = await open.as(session_token).get<{ data: { id: string }[] }>('/v1/orgs');
    assert.equal(orgs.body.data.length, 1);
    const path = `/v1/orgs/${orgs.body.data[0]?.id}/members/${user.id}`;
    const member = await open.as(session_token).get<{ role: string }>(path);
    assert.equal(member.body.role, 'owner');
  });

  test("without a name, the organisation is named by the address, truncated to a name's length", async () => {
    const email = `${'a'.repeat(60)}@${'b'.repeat(60)}.org`;
    const { session_token } = (await register(open, { email })).body;
    const orgs = await open.as(session_token).get<{ data: { name: string }[] }>('/v1/orgs');
    assert.equal(orgs.body.data[0]?.name, email.slice(0, 100));
  });

  test('by invitation, although closed: also a member there, and acts in its own organisation by default', async () => {
    const email = newEmail();
    const { owner, token } = await invitation(closed, email);
    const answer = await register(closed, { email: email.toUpperCase(), invitation_token: token });
    assert.equal(answer.status, 201, answer.text);
    const { user, session_token } = answer.body;
    const orgs = await closed.as(session_token).get<{ data: { id: string }[] }>('/v1/orgs');
    assert.equal(orgs.body.data.length, 2);
    const path = `/v1/orgs/${owner.org_id}/members/${user.id}`;
    assert.equal((await closed.as(session_token).get<{ role: string }>(path)).body.role, 'member');
    const theirs = await closed.instance(owner);
    assertError(await closed.as(session_token).get(`/v1/instances/${theirs.id}`), 'NOT_FOUND');
  });

  test('the database has neither the plain password nor plain tokens', async () => {
    const answer = await register(open, {});
    const rows = JSON.stringify([
      await open.db.selectFrom('users').selectAll().execute(),
      await open.db.selectFrom('sessions').selectAll().execute(),
      await open.db.selectFrom('session_tokens').selectAll().execute(),
    ]);
    assert.ok(!rows.includes(PASSWORD));
    for (const token of [answer.body.session_token, setCookieOf(answer).value]) {
      assert.ok(token.length > 40 && !rows.includes(token.slice(11)));
      assert.ok(!rows.includes(JSON.stringify([...Buffer.from(token)]).slice(1, -1)));
    }
  });
});

describe('400', () => {
  const bodies: Record<string, Record<string, unknown>> = {
    'a password of 11 characters': { password: 'x'.repeat(11) },
    'a password of 257 characters': { password: 'x'.repeat(257) },
    'one of the most used passwords': { password: 'Password1234' },
    'the address as the password': { email: 'ada.lovelace@example.org', password: 'Ada.Lovelace1!' },
    'an address without @': { email: 'nobody' },
    'an empty name': { name: '' },
    'a name of 101 characters': { name: 'x'.repeat(101) },
    'a name with a control character': { name: 'a\u0007b' },
    'an unknown field': { admin: true },
  };
  for (const [what, body] of Object.entries(bodies)) {
    test(what, async () => {
      assertError(await register(open, body), 'INVALID_REQUEST');
    });
  }
  test('passwords of 12 and of 256 characters are accepted', async () => {
    for (const length of [12, 256]) {
      assert.equal((await register(open, { password: 'é'.repeat(length) })).status, 201);
    }
  });
});

describe('403', () => {
  test('registration is closed by default', async () => {
    assertError(await register(closed, {}), 'FORBIDDEN', /closed/);
    assertError(await register(closed, { password: 'short' }), 'FORBIDDEN', /closed/);
  });
  test('with an invitation of another address, or one that is used, withdrawn, or unknown', async () => {
    const email = newEmail();
    const { token } = await invitation(closed, email);
    assertError(await register(closed, { invitation_token: token }), 'FORBIDDEN');
    assert.equal((await register(closed, { email, invitation_token: token })).status, 201);
    assertError(await register(closed, { email, invitation_token: token }), 'FORBIDDEN');
    assertError(await register(open, { invitation_token: 'berth_mail_x' }), 'FORBIDDEN');
    const second = newEmail();
    const { token: late } = await invitation(closed, second);
    await closed.db
      .updateTable('invitations')
      .set({ expires_at: new Date(Date.now() - 1_000) })
      .where('email', '=', second)
      .execute();
    assertError(await register(closed, { email: second, invitation_token: late }), 'FORBIDDEN');
  });
  test('from a page of another site', async () => {
    assertError(await register(open, {}, { origin: 'https://evil.example' }), 'FORBIDDEN');
    assertError(await register(open, {}, { 'sec-fetch-site': 'cross-site' }), 'FORBIDDEN');
    assertError(await register(open, { password: '' }, { 'sec-fetch-site': 'cross-site' }), 'FORBIDDEN');
  });
});

describe('409', () => {
  test('an address that has an account, in any case; ten concurrent registrations create one account', async () => {
    const email = newEmail();
    const answers = await Promise.all(
      Array.from({ length: 10 }, (_, at) => register(open, { email: at % 2 ? email : email.toUpperCase() })),
    );
    assert.equal(answers.filter(({ status }) => status === 201).length, 1);
    for (const answer of answers.filter(({ status }) => status !== 201)) assertError(answer, 'CONFLICT');
  });
});

describe('415', () => {
  test('anything but JSON', async () => {
    const headers = { 'content-type': 'application/x-www-form-urlencoded' };
    const answer = await open.client.call('POST', '/v1/auth/register', {
      raw: 'email=a@example.org',
      headers,
    });
    assertError(answer, 'UNSUPPORTED_MEDIA_TYPE');
  });
});
