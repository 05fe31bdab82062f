/** Login, logout, and what counts as a credential on every other route. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { crc32 } from 'node:zlib';
import {
  API_KEY_PREFIX,
  hashToken,
  newToken,
  SESSION_PREFIX,
} from '../../src/control-plane/identity/tokens.ts';
import { sweep } from '../../src/control-plane/sweep.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { makeKey, makeSession } from '../support/people.ts';

const api = await apiForFile();
const PASSWORD = 'correct horse battery';
const owner = await api.person({ password: PASSWORD });

interface LoginOut {
  readonly user: { id: string; email: string };
  readonly session_token: string;
  readonly expires_at: string;
}

function login(email: string, password: string) {
  return api.client.post<LoginOut>('/v1/auth/login', { email, password });
}

describe('200', () => {
  test('a login returns a session token for an hour, with Cache-Control: no-store', async () => {
    const answer = await login(owner.email, PASSWORD);
    assert.equal(answer.status, 200, answer.text);
    assert.equal(answer.body.user.id, owner.user_id);
    assert.equal(answer.headers['cache-control'], 'no-store');
    assert.match(answer.body.session_token, /^berth_sess_[0-9A-Za-z]{49}$/);
    const left_ms = Date.parse(answer.body.expires_at) - Date.now();
    assert.ok(left_ms > 3_590_000 && left_ms <= 3_600_000, String(left_ms));
    assert.equal((await api.as(answer.body.session_token).get('/v1/me')).status, 200);
  });

  test('the case of an address is ignored, that of a password is not', async () => {
    assert.equal((await login(owner.email.toUpperCase(), PASSWORD)).status, 200);
    assertError(await login(owner.email, PASSWORD.toUpperCase()), 'UNAUTHENTICATED');
  });

  test('the database has no plain token', async () => {
    const { session_token } = (await login(owner.email, PASSWORD)).body;
    const rows = [
      await api.db.selectFrom('sessions').selectAll().execute(),
      await api.db.selectFrom('session_tokens').selectAll().execute(),
    ];
    assert.ok(!JSON.stringify(rows).includes(session_token.slice(SESSION_PREFIX.length)));
  });

  test('the scheme of the credential is case-insensitive', async () => {
    const headers = { authorization: `bearer ${owner.session}` };
    assert.equal((await api.client.get('/v1/me', { headers })).status, 200);
  });
});

describe('204', () => {
  test('a logout ends this session and no other', async () => {
    const one = await makeSession(api.db, owner.user_id);
    const answer = await api.as(one.session).post('/v1/auth/logout');
    assert.deepEqual([answer.status, answer.text], [204, '']);
    assertError(await api.as(one.session).get('/v1/me'), 'UNAUTHENTICATED');
    assert.equal((await api.as(owner).get('/v1/me')).status, 200);
  });
});

describe('400', () => {
  const bodies: Record<string, unknown> = {
    'no body': undefined,
    'no password': { email: owner.email },
    'an empty password': { email: owner.email, password: '' },
    'a password of 257 characters': { email: owner.email, password: 'x'.repeat(257) },
    'a password that is a number': { email: owner.email, password: 123456789012 },
    'an address without @': { email: 'nobody', password: PASSWORD },
    'an unknown field': { email: owner.email, password: PASSWORD, remember: true },
    'a list': [owner.email, PASSWORD],
  };
  for (const [what, body] of Object.entries(bodies)) {
    test(`login with ${what}`, async () => {
      assertError(await api.client.post('/v1/auth/login', body), 'INVALID_REQUEST');
    });
  }
  test('login with an unknown query parameter', async () => {
    const body = { email: owner.email, password: PASSWORD };
    assertError(await api.client.post('/v1/auth/login?next=/', body), 'INVALID_REQUEST', /next/);
  });
  test('logout with a body', async () => {
    const { session } = await makeSession(api.db, owner.user_id);
    assertError(await api.as(session).post('/v1/auth/logout', { all: true }), 'INVALID_REQUEST', /all/);
    assert.equal((await api.as(session).get('/v1/me')).status, 200, 'the session is still open');
  });
});

describe('401', () => {
  test('a wrong password and an unknown address get the same answer', async () => {
    const wrong = await login(owner.email, 'not the password');
    const unknown = await login(`${newId('usr')}@example.org`, 'not the password');
    assertError(wrong, 'UNAUTHENTICATED');
    assert.deepEqual(withoutRequestId(wrong), withoutRequestId(unknown));
  });

  test('a failed login creates no session', async () => {
    const count = () => api.db.selectFrom('sessions').select('id').execute();
    const before = (await count()).length;
    await login(owner.email, 'not the password');
    assert.equal((await count()).length, before);
  });

  const credentials: Record<string, () => Promise<string | undefined> | string | undefined> = {
    'no credential': () => undefined,
    'an empty one': () => 'Bearer ',
    'another scheme': () => `Basic ${Buffer.from('a:b').toString('base64')}`,
    'a token without scheme': () => owner.session,
    'two tokens': () => `Bearer ${owner.session} ${owner.session}`,
    'an unknown prefix': () => `Bearer sk_live_${owner.session.slice(SESSION_PREFIX.length)}`,
    'a session that never was': () => `Bearer ${newToken(SESSION_PREFIX)}`,
    'a key that never was': () => `Bearer ${newToken(API_KEY_PREFIX)}`,
    'a session in the clothes of a key': () =>
      `Bearer ${API_KEY_PREFIX}${owner.session.slice(SESSION_PREFIX.length)}`,
    'one character too many': () => `Bearer ${owner.session}0`,
    'an expired session': async () => `Bearer ${(await makeSession(api.db, owner.user_id, -1_000)).session}`,
    'an expired key': async () =>
      `Bearer ${(await makeKey(api.db, owner, '*', new Date(Date.now() - 1_000))).key}`,
  };
  for (const [what, make] of Object.entries(credentials)) {
    test(what, async () => {
      const authorization = await make();
      const headers: Record<string, string> = authorization === undefined ? {} : { authorization };
      assertError(await api.client.get('/v1/instances', { headers }), 'UNAUTHENTICATED');
    });
  }

  test('a token with a bad checksum, before any look-up', async () => {
    // A session whose token lacks only a right checksum, put into the database as if it had one.
    const body = owner.session.slice(SESSION_PREFIX.length, -6);
    assert.equal(owner.session.slice(-6), checksum(body));
    const forged = `${SESSION_PREFIX}${body}${checksum(body) === '000000' ? '000001' : '000000'}`;

    const { session_id } = await makeSession(api.db, owner.user_id);
    await api.db
      .updateTable('session_tokens')
      .set({ token_hash: hashToken(forged) })
      .where('session_id', '=', session_id)
      .execute();
    assertError(await api.as(forged).get('/v1/me'), 'UNAUTHENTICATED');
  });

  test('a key of a former member', async () => {
    const member = await api.person({ org_id: owner.org_id, role: 'member' });
    const { key } = await makeKey(api.db, member, '*');
    assert.equal((await api.as(key).get('/v1/instances')).status, 200);
    await api.db.deleteFrom('memberships').where('user_id', '=', member.user_id).execute();
    assertError(await api.as(key).get('/v1/instances'), 'UNAUTHENTICATED');
    assertError(await api.as(member).get('/v1/instances'), 'UNAUTHENTICATED');
  });

  test('the sweep removes expired sessions, and no others', async () => {
    const old = await makeSession(api.db, owner.user_id, -1_000);
    const ended = await makeSession(api.db, owner.user_id);
    await api.db
      .updateTable('sessions')
      .set({ ends_at: new Date(Date.now() - 1_000) })
      .where('id', '=', ended.session_id)
      .execute();
    await sweep(api.db);
    const ids = (await api.db.selectFrom('sessions').select('id').execute()).map((row) => row.id);
    assert.ok(!ids.includes(ended.session_id) && ids.includes(owner.session_id));
    assert.ok(
      ids.includes(old.session_id),
      'a session outlives its token: the refresh cookie gets it another',
    );
    const tokens = await api.db.selectFrom('session_tokens').select('session_id').execute();
    assert.ok(!tokens.some((row) => row.session_id === old.session_id));
  });
});

describe('403', () => {
  test('a session that names an organisation of which its user is not a member', async () => {
    const stranger = await api.person();
    for (const org of [stranger.org_id, newId('org'), 'org_x', 'x']) {
      const answer = await api.as(owner).get('/v1/instances', { headers: { 'berth-org': org } });
      assertError(answer, 'FORBIDDEN', /Berth-Org/);
    }
  });
  test('a key with another organisation in Berth-Org', async () => {
    const stranger = await api.person();
    const { key } = await makeKey(api.db, owner, '*');
    for (const org of [stranger.org_id, newId('org'), 'x']) {
      const answer = await api.as(key).get('/v1/instances', { headers: { 'berth-org': org } });
      assertError(answer, 'FORBIDDEN', /API key acts in the organisation it was made in/);
    }
    for (const org of [owner.org_id, '']) {
      assert.equal((await api.as(key).get('/v1/instances', { headers: { 'berth-org': org } })).status, 200);
    }
  });
  test('a session acts in the organisation that it names', async () => {
    const both = await api.person();
    await api.db
      .insertInto('memberships')
      .values({ org_id: owner.org_id, user_id: both.user_id, role: 'billing' })
      .execute();
    const theirs = await api.instance(owner);
    const path = `/v1/instances/${theirs.id}`;
    assertError(await api.as(both).get(path), 'NOT_FOUND');
    const headers = { 'berth-org': owner.org_id };
    assert.equal((await api.as(both).get(path, { headers })).status, 200);
    assertError(await api.as(both).call('DELETE', path, { headers }), 'FORBIDDEN');
  });
  test('a key on a route for sessions', async () => {
    const { key } = await makeKey(api.db, owner, '*');
    assertError(await api.as(key).post('/v1/auth/logout'), 'FORBIDDEN');
    assertError(await api.as(key).get('/v1/me'), 'FORBIDDEN');
  });
});

/** CRC32 of the 43 characters in base62, an independent computation of the format that the interface states. */
function checksum(random: string): string {
  const digits = [...'0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'];
  let rest = BigInt(crc32(random));
  const out: string[] = [];
  for (let i = 0; i < 6; i++, rest /= 62n) out.unshift(digits[Number(rest % 62n)] ?? '');
  return out.join('');
}
