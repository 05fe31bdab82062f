/** The refresh cookie: a new session token for a page that has lost its own, and nothing else. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import { deleteExpired } from '../../src/control-plane/identity/store.ts';
import { hashToken, newToken, REFRESH_PREFIX } from '../../src/control-plane/identity/tokens.ts';
import type { SessionId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import type { Answer } from '../support/client.ts';
import { setCookieOf } from '../support/cookies.ts';
import { assertError } from '../support/expect.ts';
import { untilLocksAreWaitedFor } from '../support/lock-waits.ts';

const api = await apiForFile({ context: { public_url: 'https://berth.example' } });
const PASSWORD = 'correct horse battery';
const owner = await api.person({ password: PASSWORD });

interface SessionOut {
  readonly session_token: string;
  readonly expires_at: string;
}
function login(headers: Record<string, string> = {}): Promise<Answer<SessionOut>> {
  return api.client.post('/v1/auth/login', { email: owner.email, password: PASSWORD }, { headers });
}
async function opened(): Promise<{ session: string; cookie: string }> {
  const answer = await login();
  assert.equal(answer.status, 200, answer.text);
  return { session: answer.body.session_token, cookie: setCookieOf(answer).header };
}
function refresh(headers: Record<string, string>): Promise<Answer<SessionOut>> {
  return api.client.post('/v1/auth/refresh', undefined, { headers });
}
const sessionIdOf = async (session: string) => {
  const list = await api
    .as(session)
    .get<{ data: { id: SessionId; current: boolean }[] }>('/v1/auth/sessions');
  const own = list.body.data.find(({ current }) => current);
  assert.ok(own);
  return own.id;
};

describe('200', () => {
  test('login sets __Host-berth_refresh; HttpOnly; Secure; SameSite=Strict; Path=/, for 30 days, without a domain', async () => {
    const cookie = setCookieOf(await login());
    assert.equal(cookie.name, '__Host-berth_refresh');
    assert.match(cookie.value, /^berth_refr_[0-9A-Za-z]{49}$/);
    assert.deepEqual(cookie.attributes, [
      'HttpOnly',
      'Max-Age=2592000',
      'Path=/',
      'SameSite=Strict',
      'Secure',
    ]);
  });

  test('a refresh returns a new token for an hour for the same session; the old one stays valid', async () => {
    const { session, cookie } = await opened();
    const answer = await refresh({ cookie });
    assert.equal(answer.status, 200, answer.text);
    assert.deepEqual(Object.keys(answer.body).sort(), ['expires_at', 'session_token']);
    assert.equal(answer.headers['cache-control'], 'no-store');
    const left_ms = Date.parse(answer.body.expires_at) - Date.now();
    assert.ok(left_ms > 3_590_000 && left_ms <= 3_600_000, String(left_ms));
    assert.notEqual(answer.body.session_token, session);
    assert.equal(await sessionIdOf(answer.body.session_token), await sessionIdOf(session));
  });

  test('each refresh replaces the cookie by a new one with the same lifetime and attributes', async () => {
    const { session, cookie } = await opened();
    const first = setCookieOf(await refresh({ cookie }));
    const second = setCookieOf(await refresh({ cookie: first.header }));
    assert.deepEqual([first.name, second.name], ['__Host-berth_refresh', '__Host-berth_refresh']);
    assert.deepEqual(first.attributes, setCookieOf(await login()).attributes);
    assert.equal(new Set([cookie, first.header, second.header]).size, 3);
    for (const { value } of [first, second]) assert.match(value, /^berth_refr_[0-9A-Za-z]{49}$/);
    const answer = await refresh({ cookie: second.header });
    assert.equal(await sessionIdOf(answer.body.session_token), await sessionIdOf(session));
  });

  test('ten concurrent refreshes with one cookie all succeed, with the same new cookie', async () => {
    const { session, cookie } = await opened();
    const answers = await Promise.all(Array.from({ length: 10 }, () => refresh({ cookie })));
    assert.deepEqual(new Set(answers.map(({ status }) => status)), new Set([200]));
    const given = new Set(answers.map((answer) => setCookieOf(answer).header));
    assert.equal(given.size, 1);
    assert.equal((await refresh({ cookie: [...given][0] ?? '' })).status, 200);
    assert.equal((await api.as(session).get('/v1/me')).status, 200);
  });

  test('a cookie that was replaced within 10 s gets the current one, however often it was replaced', async () => {
    const { cookie } = await opened();
    let present = cookie;
    for (let times = 0; times < 3; times++) present = setCookieOf(await refresh({ cookie: present })).header;
    const late = await refresh({ cookie });
    assert.equal(late.status, 200, late.text);
    assert.equal(setCookieOf(late).header, present);
    assert.equal((await refresh({ cookie: present })).status, 200);
  });

  test("after a change of the server's key, a replaced cookie still gets a session token", async () => {
    const { cookie } = await opened();
    const id = await sessionIdOf((await refresh({ cookie })).body.session_token);
    const refresh_hash = hashToken(newToken(REFRESH_PREFIX));
    await api.db.updateTable('sessions').set({ refresh_hash }).where('id', '=', id).execute();
    const answer = await refresh({ cookie });
    assert.deepEqual([answer.status, answer.headers['set-cookie']], [200, undefined], answer.text);
  });

  test('after an hour the token is refused and the cookie gets another', async () => {
    const { session, cookie } = await opened();
    const id = await sessionIdOf(session);
    await api.db
      .updateTable('session_tokens')
      .set({ expires_at: new Date(Date.now() - 1_000) })
      .where('session_id', '=', id)
      .execute();
    assertError(await api.as(session).get('/v1/me'), 'UNAUTHENTICATED');
    const again = await refresh({ cookie });
    assert.equal((await api.as(again.body.session_token).get('/v1/me')).status, 200);
  });

  test('no token outlives the 30 days of its session', async () => {
    const { session, cookie } = await opened();
    const id = await sessionIdOf(session);
    const row = await api.db
      .selectFrom('sessions')
      .selectAll()
      .where('id', '=', id)
      .executeTakeFirstOrThrow();
    const days = (row.ends_at.getTime() - row.created_at.getTime()) / 86_400_000;
    assert.ok(Math.abs(days - 30) < 0.001, String(days));
    const ends_at = new Date(Date.now() + 600_000);
    await api.db.updateTable('sessions').set({ ends_at }).where('id', '=', id).execute();
    assert.equal((await refresh({ cookie })).body.expires_at, ends_at.toISOString());
    await api.db
      .updateTable('sessions')
      .set({ ends_at: new Date(Date.now() - 1_000) })
      .where('id', '=', id)
      .execute();
    assertError(await refresh({ cookie }), 'UNAUTHENTICATED');
    assertError(await api.as(session).get('/v1/me'), 'UNAUTHENTICATED');
    const headers = { 'berth-org': (await api.person()).org_id };
    assertError(await api.as(session).get('/v1/instances', { headers }), 'UNAUTHENTICATED');
  });

  test('from a page of this server, by Origin or Sec-Fetch-Site, with JSON or no Content-Type', async () => {
    const { cookie } = await opened();
    const json = { 'content-type': 'application/json' };
    for (const headers of [
      json,
      { origin: 'https://berth.example' },
      { origin: api.origin },
      { 'sec-fetch-site': 'same-origin', origin: 'https://berth.example' },
      { 'sec-fetch-site': 'none' },
    ]) {
      assert.equal((await refresh({ cookie, ...headers })).status, 200, JSON.stringify(headers));
    }
  });
});

describe('400', () => {
  test('a body that is not empty', async () => {
    const { cookie } = await opened();
    const answer = await api.client.post('/v1/auth/refresh', { all: true }, { headers: { cookie } });
    assertError(answer, 'INVALID_REQUEST');
  });
});

/** As if that many seconds had passed since the session's cookies were replaced. */
const replacedAgo = (id: SessionId, seconds: number) =>
  api.db
    .updateTable('replaced_refresh_tokens')
    .set({ replaced_at: sql`clock_timestamp() - make_interval(secs => ${seconds})` })
    .where('session_id', '=', id)
    .execute();

describe('401', () => {
  test('a replaced cookie after more than 10 s: the session has ended, for its current cookie too', async () => {
    const { session, cookie } = await opened();
    const other = await opened();
    const id = await sessionIdOf(session);
    const present = setCookieOf(await refresh({ cookie })).header;
    await replacedAgo(id, 9);
    assert.equal((await refresh({ cookie })).status, 200);
    await replacedAgo(id, 11);
    const reused = await refresh({ cookie });
    assertError(reused, 'UNAUTHENTICATED');
    assert.equal(reused.headers['set-cookie'], undefined, 'it may be that of another session by now');
    assertError(await refresh({ cookie: present }), 'UNAUTHENTICATED');
    assertError(await api.as(session).get('/v1/me'), 'UNAUTHENTICATED');
    assert.equal((await api.as(other.session).get('/v1/me')).status, 200);
    assert.equal((await refresh({ cookie: other.cookie })).status, 200);
    const entry = await api.db
      .selectFrom('audit_log')
      .selectAll()
      .where('org_id', '=', owner.org_id)
      .where('action', '=', 'auth.end_reused_session')
      .executeTakeFirstOrThrow();
    assert.deepEqual([entry.actor, entry.target, entry.ip], ['system', id, '127.0.0.1']);
  });

  test('a cookie whose replacement is no longer recorded ends the session too', async () => {
    const { session, cookie } = await opened();
    const id = await sessionIdOf(session);
    let present = cookie;
    for (let times = 0; times < 3; times++) {
      present = setCookieOf(await refresh({ cookie: present })).header;
      await replacedAgo(id, 3_600);
    }
    const kept = api.db
      .selectFrom('replaced_refresh_tokens')
      .select('token_hash')
      .where('session_id', '=', id);
    assert.equal((await kept.execute()).length, 1, 'the next refresh removes those before');
    await deleteExpired(api.db);
    assert.deepEqual(await kept.execute(), []);
    assertError(await refresh({ cookie }), 'UNAUTHENTICATED');
    assertError(await refresh({ cookie: present }), 'UNAUTHENTICATED');
  });

  test('two concurrent refreshes with a cookie that was replaced long ago both fail', async () => {
    const { session, cookie } = await opened();
    await refresh({ cookie });
    await replacedAgo(await sessionIdOf(session), 11);
    for (const answer of await Promise.all([refresh({ cookie }), refresh({ cookie })])) {
      assertError(answer, 'UNAUTHENTICATED');
    }
  });

  test('a session that ends while it is refreshed', async () => {
    const { session, cookie } = await opened();
    const id = await sessionIdOf(session);
    const { answer } = await api.db.transaction().execute(async (tx) => {
      await tx.deleteFrom('sessions').where('id', '=', id).execute();
      const asked = refresh({ cookie });
      await untilLocksAreWaitedFor(api.db, 1);
      return { answer: asked };
    });
    assertError(await answer, 'UNAUTHENTICATED');
  });
  test('without the cookie, with an invented one, with two, or with a session token in it', async () => {
    const { session, cookie } = await opened();
    const name = '__Host-berth_refresh';
    for (const bad of [
      'other=1',
      `${name}=`,
      `${name}=${newToken(REFRESH_PREFIX)}`,
      `${cookie}; ${cookie}`,
      `${name}=${session}`,
    ]) {
      assertError(await refresh({ cookie: bad }), 'UNAUTHENTICATED');
    }
    assertError(await refresh({}), 'UNAUTHENTICATED');
  });

  test('after logout and after revocation of the session', async () => {
    const one = await opened();
    const left = await api.as(one.session).post('/v1/auth/logout');
    const cleared = setCookieOf(left);
    assert.deepEqual([cleared.name, cleared.value], ['__Host-berth_refresh', '']);
    assert.ok(cleared.attributes.includes('Max-Age=0'));
    assertError(await refresh({ cookie: one.cookie }), 'UNAUTHENTICATED');
    const two = await opened();
    const id = await sessionIdOf(two.session);
    assert.equal((await api.as(owner).delete(`/v1/auth/sessions/${id}`)).status, 204);
    assertError(await refresh({ cookie: two.cookie }), 'UNAUTHENTICATED');
  });

  test('the cookie authorises no other route, nor does the refresh token as a credential', async () => {
    const { cookie } = await opened();
    assertError(await api.client.get('/v1/me', { headers: { cookie } }), 'UNAUTHENTICATED');
    assertError(await api.as(cookie.split('=')[1] ?? '').get('/v1/me'), 'UNAUTHENTICATED');
  });
});

describe('403', () => {
  const foreign: Record<string, Record<string, string>> = {
    'another origin': { origin: 'https://evil.example' },
    'an origin that begins like ours': { origin: 'https://berth.example.evil.example' },
    'our host over http': { origin: 'http://berth.example' },
    'an origin that is hidden': { origin: 'null' },
    'another site': { 'sec-fetch-site': 'cross-site' },
    'a sibling of our site': { 'sec-fetch-site': 'same-site' },
    'our origin, but another site': { origin: 'https://berth.example', 'sec-fetch-site': 'cross-site' },
  };
  for (const [what, headers] of Object.entries(foreign)) {
    test(`${what}, on login and on refresh`, async () => {
      const { cookie } = await opened();
      const at_login = await login(headers);
      assertError(at_login, 'FORBIDDEN');
      assert.equal(at_login.headers['set-cookie'], undefined);
      assertError(await refresh({ cookie, ...headers }), 'FORBIDDEN');
    });
  }
});

describe('415', () => {
  test('content types that a form can send, on login and on refresh', async () => {
    const { cookie } = await opened();
    const json = JSON.stringify({ email: owner.email, password: PASSWORD });
    for (const type of [
      'text/plain',
      'application/x-www-form-urlencoded',
      'multipart/form-data; boundary=x',
    ]) {
      const headers = { 'content-type': type, cookie };
      const at_login = await api.client.call('POST', '/v1/auth/login', { raw: json, headers });
      assertError(at_login, 'UNSUPPORTED_MEDIA_TYPE');
      const at_refresh = await api.client.call('POST', '/v1/auth/refresh', { raw: '{}', headers });
      assertError(at_refresh, 'UNSUPPORTED_MEDIA_TYPE');
    }
  });
});
