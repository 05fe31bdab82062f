/** Sudo: a password entered again opens the destructive routes to one session, for five minutes by our own clock. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setPassword } from '../../src/control-plane/identity/passwords.ts';
import type { Principal } from '../../src/control-plane/identity/principal.ts';
import { grantSudo } from '../../src/control-plane/identity/sessions.ts';
import { lockUser } from '../../src/control-plane/identity/store.ts';
import { newToken, SUDO_PREFIX } from '../../src/control-plane/identity/tokens.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import type { Answer, Method } from '../support/client.ts';
import { setCookieOf } from '../support/cookies.ts';
import { assertError } from '../support/expect.ts';
import { untilLocksAreWaitedFor } from '../support/lock-waits.ts';
import { makeKey, makeServiceKey, makeSession, makeSudo, type Person } from '../support/people.ts';

const api = await apiForFile();
const PASSWORD = 'correct horse battery';
const person = () => api.person({ password: PASSWORD });
const ann = await person();

const RIGHT = { password: PASSWORD };
const sudo = (session: string, body: unknown) =>
  api.as(session).post<{ expires_at: string }>('/v1/auth/sudo', body);

async function granted(session: string): Promise<{ cookie: string }> {
  const answer = await sudo(session, RIGHT);
  assert.equal(answer.status, 200, answer.text);
  return { cookie: setCookieOf(answer).header };
}

const accountOf = ({ user_id }: Person) =>
  api.db.selectFrom('users').selectAll().where('id', '=', user_id).executeTakeFirstOrThrow();
const grantsOf = ({ user_id }: Person) =>
  api.db.selectFrom('sudo_grants').select('session_id').where('user_id', '=', user_id).execute();

interface Destructive {
  readonly method: Method;
  readonly path: (who: Person) => Promise<string>;
  readonly body?: unknown;
  /** A body that is refused. */
  readonly bad: unknown;
  /** The path of what never was; none: there is no such. */
  readonly unknown?: (who: Person) => string;
  readonly status: number;
}
const DESTRUCTIVE: Record<string, Destructive> = {
  'account deletion': { method: 'DELETE', path: async () => '/v1/me', bad: { x: 1 }, status: 204 },
  'MFA factor addition': {
    method: 'POST',
    path: async () => '/v1/me/mfa/factors',
    body: { type: 'totp', name: 'phone' },
    bad: { type: 'sms', name: 'phone' },
    status: 201,
  },
  'MFA factor removal': {
    method: 'DELETE',
    path: async ({ user_id }) => {
      const id = newId('mfa');
      await api.db.insertInto('mfa_factors').values({ id, user_id, type: 'totp', name: 'phone' }).execute();
      return `/v1/me/mfa/factors/${id}`;
    },
    bad: { x: 1 },
    unknown: () => `/v1/me/mfa/factors/${newId('mfa')}`,
    status: 204,
  },
  'billing e-mail change': {
    method: 'PUT',
    path: async ({ org_id }) => `/v1/orgs/${org_id}/billing-email`,
    body: { email: 'bills@example.org' },
    bad: { email: 'nobody' },
    unknown: () => `/v1/orgs/${newId('org')}/billing-email`,
    status: 200,
  },
  'API key rotation': {
    method: 'POST',
    path: async (who) => `/v1/api-keys/${(await makeKey(api.db, who, '*')).id}/rotate`,
    body: {},
    bad: { grace_seconds: -1 },
    unknown: () => `/v1/api-keys/${newId('ak')}/rotate`,
    status: 200,
  },
};

describe('200', () => {
  test('the cookie is exactly __Secure-berth_sudo; HttpOnly; Secure; SameSite=Strict; Path=/v1; Max-Age=300', async () => {
    const answer = await sudo(ann.session, RIGHT);
    assert.equal(answer.status, 200, answer.text);
    assert.deepEqual(Object.keys(answer.body), ['expires_at']);
    const left_ms = Date.parse(answer.body.expires_at) - Date.now();
    assert.ok(left_ms > 290_000 && left_ms <= 301_000, String(left_ms));
    assert.equal(answer.headers['cache-control'], 'no-store');
    const cookie = setCookieOf(answer);
    assert.equal(cookie.name, '__Secure-berth_sudo');
    assert.match(cookie.value, /^berth_sudo_[0-9A-Za-z]{49}$/);
    assert.deepEqual(cookie.attributes, ['HttpOnly', 'Max-Age=300', 'Path=/v1', 'SameSite=Strict', 'Secure']);
  });

  test("the five minutes are measured by the database's clock", async () => {
    const who = await person();
    const headers = await granted(who.session);
    const row = await api.db
      .selectFrom('sudo_grants')
      .selectAll()
      .where('user_id', '=', who.user_id)
      .executeTakeFirstOrThrow();
    const left_ms = row.expires_at.getTime() - Date.now();
    assert.ok(left_ms > 290_000 && left_ms <= 301_000, String(left_ms));
    assert.equal(row.session_id, who.session_id);
    assert.ok(!JSON.stringify(row).includes(headers.cookie.slice(-40)));
    const expires_at = new Date(Date.now() - 1);
    await api.db.updateTable('sudo_grants').set({ expires_at }).where('user_id', '=', who.user_id).execute();
    assertError(await api.as(who).call('DELETE', '/v1/me', { headers }), 'SUDO_REQUIRED');
  });
});

for (const [what, { method, path, body, bad, unknown, status }] of Object.entries(DESTRUCTIVE)) {
  describe(what, () => {
    const call = (
      token: string | undefined,
      to: string,
      headers = {},
      json = body,
    ): Promise<Answer<unknown>> =>
      api.client.as(token).call(method, to, json === undefined ? { headers } : { json, headers });

    test('403 SUDO_REQUIRED without a grant, with an expired, a made-up, an unnamed, a doubled or an empty one', async () => {
      const who = await person();
      const to = await path(who);
      const live = (await makeSudo(api.db, who)).cookie;
      const expired = (await makeSudo(api.db, who, -1)).cookie;
      const cookies = [
        undefined,
        expired,
        `__Secure-berth_sudo=${newToken(SUDO_PREFIX)}`,
        live.replace('__Secure-', ''),
        `${live}; ${live}`,
        '__Secure-berth_sudo=',
        `__Secure-berth_sudo=${who.session}`,
      ];
      for (const cookie of cookies) {
        const headers: Record<string, string> = cookie === undefined ? {} : { cookie };
        assertError(await call(who.session, to, headers), 'SUDO_REQUIRED');
      }
    });

    test('403 SUDO_REQUIRED with the grant of another session of the same user, or of another user', async () => {
      const who = await person();
      const to = await path(who);
      const other = { ...(await makeSession(api.db, who.user_id)), user_id: who.user_id };
      for (const holder of [other, ann]) {
        assertError(await call(who.session, to, await makeSudo(api.db, holder)), 'SUDO_REQUIRED');
      }
    });

    test('401, then 403 FORBIDDEN, then 403 SUDO_REQUIRED, then 400, then 404', async () => {
      const who = await person();
      const to = await path(who);
      const headers = await granted(who.session);
      assertError(await call(undefined, to, headers, bad), 'UNAUTHENTICATED');
      const { key } = await makeKey(api.db, who, '*');
      assertError(await call(key, to, headers, bad), 'FORBIDDEN');
      assertError(await call(who.session, to, {}, bad), 'SUDO_REQUIRED');
      const nowhere = unknown?.(who) ?? to;
      assertError(await call(who.session, nowhere, {}, bad), 'SUDO_REQUIRED');
      assertError(await call(who.session, nowhere, headers, bad), 'INVALID_REQUEST');
      if (unknown) assertError(await call(who.session, nowhere, headers), 'NOT_FOUND');
    });

    test(`${status} with a grant, which is good more than once`, async () => {
      const who = await person();
      const to = await path(who);
      const headers = await granted(who.session);
      if (unknown) assertError(await call(who.session, unknown(who), headers), 'NOT_FOUND');
      const answer = await call(who.session, to, headers);
      assert.equal(answer.status, status, answer.text);
    });
  });
}

test('403 FORBIDDEN comes before SUDO_REQUIRED for a role that may not change the billing address', async () => {
  const member = await api.person({ org_id: ann.org_id, role: 'member' });
  const to = `/v1/orgs/${ann.org_id}/billing-email`;
  assertError(await api.as(member).put(to, { email: 'a@example.org' }), 'FORBIDDEN');
});

describe('400', () => {
  for (const body of [undefined, {}, { password: '' }, { password: 1 }, { password: 'x'.repeat(257) }]) {
    test(JSON.stringify(body) ?? 'no body', async () => {
      assertError(await sudo(ann.session, body), 'INVALID_REQUEST');
    });
  }
});

describe('401', () => {
  test('a session that ended while the password was verified', async () => {
    const who = await person();
    const { session_id: id, user_id } = who;
    const credential = { kind: 'session', id, user_id, email_confirmed: true } as const;
    await api.as(who).post('/v1/auth/logout');
    const { password_hash } = await accountOf(who);
    const principal: Principal = { credential, org_id: who.org_id, role: 'owner', scopes: new Set() };
    await assert.rejects(grantSudo(api.db, principal, password_hash ?? ''), { code: 'UNAUTHENTICATED' });
  });
  test('a password that was changed in this session while it was verified', async () => {
    const who = await person();
    const { password_hash } = await accountOf(ann);
    const change = {
      password_hash: `${password_hash} of another`,
      how: 'changed',
      actor: who.user_id,
    } as const;
    const { under_way } = await api.db.transaction().execute(async (tx) => {
      await lockUser(tx, who.user_id);
      await setPassword(tx, who.user_id, { ...change, keep: who.session_id });
      const asked = sudo(who.session, RIGHT);
      await untilLocksAreWaitedFor(api.db, 1);
      return { under_way: asked };
    });
    assertError(await under_way, 'UNAUTHENTICATED');
    assert.deepEqual(await grantsOf(who), []);
  });
  test('a wrong password, and no cookie with it', async () => {
    const who = await person();
    const answer = await sudo(who.session, { password: 'not the password' });
    assertError(answer, 'UNAUTHENTICATED');
    assert.equal(answer.headers['set-cookie'], undefined);
  });

  test('no session: without a credential, with a key of a user or of a service account, whatever the body', async () => {
    const { key } = await makeKey(api.db, ann, '*');
    const { key: service } = await makeServiceKey(api.db, ann.org_id, '*');
    assertError(await api.client.post('/v1/auth/sudo', { password: PASSWORD }), 'UNAUTHENTICATED');
    for (const token of [key, service]) {
      assertError(await sudo(token, RIGHT), 'UNAUTHENTICATED');
      assertError(await sudo(token, { nonsense: true }), 'UNAUTHENTICATED');
    }
  });
});

describe('a grant ends', () => {
  test('with logout', async () => {
    const who = await person();
    const headers = await granted(who.session);
    assert.equal((await api.as(who).post('/v1/auth/logout')).status, 204);
    assert.deepEqual(await grantsOf(who), []);
    assertError(await api.as(who).call('DELETE', '/v1/me', { headers }), 'UNAUTHENTICATED');
    const { session } = await makeSession(api.db, who.user_id);
    assertError(await api.as(session).call('DELETE', '/v1/me', { headers }), 'SUDO_REQUIRED');
  });

  test('with the revocation of its session', async () => {
    const who = await person();
    await granted(who.session);
    const { session } = await makeSession(api.db, who.user_id);
    assert.equal((await api.as(session).delete(`/v1/auth/sessions/${who.session_id}`)).status, 204);
    assert.deepEqual(await grantsOf(who), []);
  });

  test('with a change of the password, also in the session that makes the change', async () => {
    const who = await person();
    const headers = await granted(who.session);
    const change = { current_password: PASSWORD, new_password: 'another good password' };
    assert.equal((await api.as(who).post('/v1/auth/password', change)).status, 204);
    assert.deepEqual(await grantsOf(who), []);
    assertError(await api.as(who).call('DELETE', '/v1/me', { headers }), 'SUDO_REQUIRED');
  });
});
