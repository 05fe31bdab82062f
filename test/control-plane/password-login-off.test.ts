/** BERTH_PASSWORD_LOGIN=off, and sudo by a new login at the provider. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { present } from '../../src/shared/assert.ts';
import type { UserId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { OidcBrowser } from '../support/oidc-browser.ts';
import { oidcContext, startProvider } from '../support/oidc-provider.ts';
import { makeSession } from '../support/people.ts';

const PUBLIC = 'http://berth.test';
const PASSWORD = 'correct horse battery';
const provider = await startProvider([`${PUBLIC}/v1/auth/oidc/callback`]);
after(() => provider.close());
const api = await apiForFile({
  context: { ...oidcContext(provider, PUBLIC), password_login: false, signups: 'open' },
});

async function loggedIn(sub: string) {
  provider.accounts.set(sub, { email: `${sub}@example.org`, email_verified: true });
  const browser = new OidcBrowser(api);
  assert.equal((await browser.logIn(sub)).place, '/');
  const session = present(await browser.session(), 'a session');
  return { browser, session };
}

/** The begin of a sudo grant, in the person's browser. */
async function beginSudo({ browser, session }: { browser: OidcBrowser; session: string }): Promise<string> {
  const begun = await api.as(session).post<{ url: string }>('/v1/auth/oidc/sudo', { return_to: '/account' });
  assert.equal(begun.status, 200, begun.text);
  const [cookie = ''] = [begun.headers['set-cookie']].flat();
  browser.setCookie(PUBLIC, '__Host-berth_oidc', /=([^;]+)/.exec(cookie)?.[1] ?? '');
  return begun.body.url;
}

/** Whether the browser's sudo cookie allows a destructive call. */
async function hasSudo({ browser, session }: { browser: OidcBrowser; session: string }): Promise<boolean> {
  const value = browser.cookie(PUBLIC, '__Secure-berth_sudo');
  const headers = value === undefined ? {} : { cookie: `__Secure-berth_sudo=${value}` };
  const json = { type: 'totp', name: 'phone' };
  const answer = await api.as(session).call('POST', '/v1/me/mfa/factors', { json, headers });
  if (answer.status !== 201) assertError(answer, 'SUDO_REQUIRED');
  return answer.status === 201;
}

describe('with passwords switched off', () => {
  test('every route that takes a password or a passkey says where to log in', async () => {
    const who = await api.person({ password: PASSWORD });
    const email = who.email;
    const { client } = api;
    const refused = [
      await client.post('/v1/auth/login', { email, password: PASSWORD }),
      await client.post('/v1/auth/register', { email: 'new@example.org', password: PASSWORD }),
      await client.post('/v1/auth/password-reset', { email }),
      await client.post('/v1/auth/password-reset/confirm', { token: 'x', new_password: PASSWORD }),
      await client.post('/v1/auth/passkey/options', {}),
      await api
        .as(who)
        .post('/v1/auth/password', { current_password: PASSWORD, new_password: `${PASSWORD} 2` }),
      await api.as(who).post('/v1/auth/sudo', { password: PASSWORD }),
      await api.as(who).put('/v1/me/email', { email: 'other@example.org', password: PASSWORD }),
    ];
    for (const answer of refused) {
      assertError(answer, 'FORBIDDEN');
      assert.match(answer.body.error.message, /switched off here\. Log in at 127\.0\.0\.1:\d+/);
    }
    assert.deepEqual(
      api.mails.filter(({ to }) => to === email),
      [],
    );
    // A session goes on.
    assert.equal((await api.as(who).get('/v1/me')).status, 200);
  });

  test('the settings for a login page say so', async () => {
    const { body } = await api.client.get<Record<string, unknown>>('/settings.json');
    assert.equal(body['password_login'], 'off');
    assert.deepEqual(body['oidc'], {
      name: new URL(provider.issuer).host,
      login_url: `${PUBLIC}/v1/auth/oidc/login`,
    });
  });
});

describe('sudo by a new login at the provider', () => {
  test('is granted to the session that asked, once the person has logged in again', async () => {
    const who = await loggedIn('ada');
    assert.equal(await hasSudo(who), false);
    const url = await beginSudo(who);
    const query = new URL(url).searchParams;
    assert.deepEqual([query.get('prompt'), query.get('max_age')], ['login', '0']);
    const form = await who.browser.visit(url);
    assert.match(form.place, /^\/interaction\//, 'the provider asks, although it knows the browser');
    const page = await who.browser.visit(form.origin + form.place, { account: 'ada' });
    assert.equal(page.place, '/account#oidc=confirmed');
    const cookie = page.set_cookies.find((each) => each.startsWith('__Secure-berth_sudo='));
    assert.match(cookie ?? '', /; Path=\/v1; Max-Age=300; HttpOnly; Secure; SameSite=Strict$/);
    assert.equal(await hasSudo(who), true);
    const { id } = (await api.as(who.session).get<{ id: UserId }>('/v1/me')).body;
    const other = { ...who, session: (await makeSession(api.db, id)).session };
    assert.equal(await hasSudo(other), false, 'not to another session of the person');
  });

  test('is refused to another person, where the provider has not asked again, and after a logout', async () => {
    const who = await loggedIn('bob');
    provider.accounts.set('mallory', { email: 'mallory@example.org', email_verified: true });
    who.browser.forget(provider.issuer);
    const form = await who.browser.visit(await beginSudo(who));
    const page = await who.browser.visit(form.origin + form.place, { account: 'mallory' });
    assert.equal(page.place, '/account#oidc=other_person');
    provider.state.auth_age_s = 120;
    const kim = await loggedIn('kim');
    provider.state.auth_age_s = 0;
    provider.state.ignores_prompt = true;
    const old = await kim.browser.visit(await beginSudo(kim));
    provider.state.ignores_prompt = false;
    assert.equal(old.place, '/account#oidc=not_repeated');
    const gone = await kim.browser.visit(await beginSudo(kim));
    await api.as(kim.session).post('/v1/auth/logout', {});
    const late = await kim.browser.visit(gone.origin + gone.place, { account: 'kim' });
    assert.equal(late.place, '/account#oidc=session_ended');
    assert.equal(await hasSudo(who), false);
  });

  test('needs a session and a provider', async () => {
    assertError(await api.client.post('/v1/auth/oidc/sudo', {}), 'UNAUTHENTICATED');
    const none = await apiForFile();
    const somebody = await none.person();
    assertError(await none.as(somebody).post('/v1/auth/oidc/sudo', {}), 'NOT_FOUND');
    assertError(await none.client.get('/v1/auth/oidc/login'), 'NOT_FOUND');
  });
});
