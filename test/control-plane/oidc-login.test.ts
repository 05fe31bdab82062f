/** A login at a real OpenID provider: the way there and back, and which account it opens. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { findWeaknesses } from '../../src/control-plane/fleet/weaknesses.ts';
import { FLOW_COOKIE } from '../../src/control-plane/http/cookies.ts';
import { newId, type OrgId, type UserId } from '../../src/shared/ids.ts';
import { apiForFile, type TestApi } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { OidcBrowser } from '../support/oidc-browser.ts';
import { oidcContext, startProvider } from '../support/oidc-provider.ts';
import { makeKey, makeSession, makeSshKey } from '../support/people.ts';

const PUBLIC = 'http://berth.test';
const team = newId('org');
const provider = await startProvider([`${PUBLIC}/v1/auth/oidc/callback`]);
after(() => provider.close());
const groups = [
  { group: 'staff', org_id: team, role: 'member' },
  { group: 'leads', org_id: team, role: 'admin' },
] as const;
const api = await apiForFile({ context: { ...oidcContext(provider, PUBLIC, groups), signups: 'closed' } });
const open: TestApi = await apiForFile({
  context: { ...oidcContext(provider, PUBLIC, groups), signups: 'open' },
});
for (const each of [api, open]) {
  const owner = await each.person();
  await each.db
    .insertInto('organisations')
    .values({ id: team, name: 'Team', billing_email: 't@example.org' })
    .execute();
  await each.db
    .insertInto('memberships')
    .values({ org_id: team, user_id: owner.user_id, role: 'owner' })
    .execute();
}

interface Me {
  readonly id: UserId;
  readonly email: string;
  readonly name: string;
  readonly email_confirmed: boolean;
  readonly password_login: boolean;
  readonly oidc_login: boolean;
}

let people = 0;
/** A new person at the provider. */
function newAccount(more: object = {}): { sub: string; email: string } {
  const sub = `person-${++people}`;
  const email = `${sub}@example.org`;
  provider.accounts.set(sub, { email, email_verified: true, name: 'Ada', groups: ['staff'], ...more });
  return { sub, email };
}

async function meOf(browser: OidcBrowser, at = api): Promise<Me> {
  const token = await browser.session();
  assert.ok(token, 'there is a session');
  return (await at.as(token).get<Me>('/v1/me')).body;
}

async function roleIn(at: TestApi, user_id: UserId, org_id: OrgId = team) {
  return at.db
    .selectFrom('memberships')
    .select(['role', 'by_groups'])
    .where('user_id', '=', user_id)
    .where('org_id', '=', org_id)
    .executeTakeFirst();
}

describe('a login at the provider', () => {
  test('creates an account without password for a person in a mapped group, a member of its organisation alone', async () => {
    const { sub, email } = newAccount();
    const browser = new OidcBrowser(api);
    const page = await browser.logIn(sub, '/v1/auth/oidc/login?return_to=/api-keys?a=1');
    assert.equal(page.place, '/api-keys?a=1');
    const me = await meOf(browser);
    assert.deepEqual(
      {
        email: me.email,
        name: me.name,
        confirmed: me.email_confirmed,
        password: me.password_login,
        oidc: me.oidc_login,
      },
      { email, name: 'Ada', confirmed: true, password: false, oidc: true },
    );
    assert.deepEqual(await roleIn(api, me.id), { role: 'member', by_groups: true });
    const memberships = await api.db
      .selectFrom('memberships')
      .select('org_id')
      .where('user_id', '=', me.id)
      .execute();
    assert.deepEqual(memberships, [{ org_id: team }]);
  });

  test('opens the same account the next time, also under another address, and follows its groups', async () => {
    const { sub } = newAccount();
    const first = new OidcBrowser(api);
    await first.logIn(sub);
    const { id } = await meOf(first);
    provider.accounts.set(sub, {
      email: 'other@example.org',
      email_verified: true,
      groups: ['staff', 'leads'],
    });
    const second = new OidcBrowser(api);
    assert.equal((await second.logIn(sub)).place, '/');
    assert.equal((await meOf(second)).id, id);
    assert.deepEqual(await roleIn(api, id), { role: 'admin', by_groups: true });
    provider.accounts.set(sub, { email_verified: false, groups: [] });
    const third = new OidcBrowser(api);
    await third.logIn(sub);
    assert.equal((await meOf(third)).id, id);
    assert.equal(await roleIn(api, id), undefined);
  });

  test('sends PKCE, state and nonce, and a cookie that only the way back needs', async () => {
    const browser = new OidcBrowser(api);
    const { to, status, set_cookies } = await browser.ask('/v1/auth/oidc/login');
    assert.equal(status, 303);
    const { origin, searchParams: query } = new URL(to ?? '');
    assert.equal(origin, provider.issuer);
    assert.equal(query.get('code_challenge_method'), 'S256');
    for (const name of ['code_challenge', 'state', 'nonce'])
      assert.ok((query.get(name) ?? '').length >= 43, name);
    assert.equal(query.get('redirect_uri'), `${PUBLIC}/v1/auth/oidc/callback`);
    assert.equal(query.get('scope'), 'openid email profile groups offline_access');
    const [cookie = '', ...rest] = set_cookies;
    assert.match(cookie, /^__Host-berth_oidc=[\w-]+; Path=\/; Max-Age=600; HttpOnly; Secure; SameSite=Lax$/);
    assert.deepEqual(rest, []);
  });

  test('leads to no other site afterwards', async () => {
    for (const bad of [
      '//evil.test',
      '/\\evil.test',
      'https://evil.test',
      '/%0d%0aevil',
      '/v1/me',
      '/a#b',
      '/..//evil.test',
    ]) {
      const { sub } = newAccount();
      const browser = new OidcBrowser(api);
      const page = await browser.logIn(sub, `/v1/auth/oidc/login?return_to=${encodeURIComponent(bad)}`);
      assert.equal(page.origin, PUBLIC, bad);
      assert.ok(!page.place.startsWith('//'), `${bad}: ${page.place}`);
    }
  });

  test('refuses an answer that this browser has not asked for, and one a second time', async () => {
    const { sub } = newAccount();
    const attacker = new OidcBrowser(api);
    const form = await attacker.visit('/v1/auth/oidc/login');
    let page = await attacker.ask(form.origin + form.place, { account: sub });
    while (page.to !== null && !page.to.startsWith(PUBLIC)) page = await attacker.ask(page.to);
    const answer = page.to ?? '';
    const victim = new OidcBrowser(api);
    assert.equal((await victim.visit(answer)).place, '/login#oidc=expired');
    // Also while the victim has begun a login.
    await victim.visit('/v1/auth/oidc/login');
    assert.equal((await victim.visit(answer)).place, '/login#oidc=expired');
    assert.equal(await victim.session(), null);
    const cookie = attacker.cookie(PUBLIC, FLOW_COOKIE) ?? '';
    assert.equal((await attacker.visit(answer)).place, '/');
    // The code is used up, and the provider then voids its tokens.
    const thief = new OidcBrowser(api);
    await thief.ask('/v1/auth/oidc/login');
    thief.setCookie(PUBLIC, FLOW_COOKIE, cookie);
    assert.equal((await thief.visit(answer)).place, '/login#oidc=refused');
  });

  test('says so where the person refuses, and where the provider does not answer', async () => {
    const browser = new OidcBrowser(api);
    const form = await browser.visit('/v1/auth/oidc/login');
    const page = await browser.visit(form.origin + form.place, { refuse: 'yes' });
    assert.equal(page.place, '/login#oidc=refused');
    const other = new OidcBrowser(api);
    const { sub } = newAccount();
    const there = await other.visit('/v1/auth/oidc/login');
    let back = await other.ask(there.origin + there.place, { account: sub });
    while (back.to !== null && !back.to.startsWith(PUBLIC)) back = await other.ask(back.to);
    provider.state.down = true;
    assert.equal((await other.visit(back.to ?? '')).place, '/login#oidc=unreachable');
    provider.state.down = false;
  });
});

describe('an unknown identity', () => {
  test('gets no account without a verified address', async () => {
    for (const claims of [
      { email_verified: false },
      { email_verified: 'true' },
      { email: undefined },
      { email_verified: undefined },
    ]) {
      const { sub } = newAccount(claims);
      const browser = new OidcBrowser(open);
      assert.equal((await browser.logIn(sub)).place, '/login#oidc=unverified_address');
      assert.equal(await browser.session(), null);
    }
  });

  test('gets none in no mapped group while sign-ups are closed, but with an invitation', async () => {
    const { sub, email } = newAccount({ groups: ['visitors'] });
    assert.equal((await new OidcBrowser(api).logIn(sub)).place, '/login#oidc=no_account');
    const admin = await api.person();
    await api.as(admin).post(`/v1/orgs/${admin.org_id}/invitations`, { email, role: 'member' });
    const browser = new OidcBrowser(api);
    assert.equal((await browser.logIn(sub)).place, '/');
    const { id } = await meOf(browser);
    // Its own organisation allows nothing.
    const own = await api.db
      .selectFrom('memberships as m')
      .innerJoin('organisations as o', 'o.id', 'm.org_id')
      .select(['m.role', 'o.quotas'])
      .where('m.user_id', '=', id)
      .execute();
    assert.equal(own.length, 1);
    assert.equal(own[0]?.quotas.instances, 0);
  });

  test('gets one where sign-ups are open', async () => {
    const { sub } = newAccount({ groups: [] });
    const browser = new OidcBrowser(open);
    assert.equal((await browser.logIn(sub)).place, '/');
    assert.equal((await meOf(browser, open)).oidc_login, true);
  });
});

describe('an account with the same address', () => {
  test('is linked if its address is confirmed, keeps its ways in, and its owner gets a mail', async () => {
    const who = await api.person();
    const key = await makeKey(api.db, who, '*');
    const { sub } = newAccount({ email: who.email.toUpperCase() });
    const browser = new OidcBrowser(api);
    await browser.logIn(sub);
    assert.equal((await meOf(browser)).id, who.user_id);
    assert.equal((await api.as(key.key).get('/v1/instances')).status, 200);
    assert.equal((await api.as(who).get('/v1/me')).status, 200);
    assert.ok(api.mails.some(({ to, subject }) => to === who.email && subject.includes('linked')));
    const { sub: second } = newAccount({ email: who.email });
    assert.equal((await new OidcBrowser(api).logIn(second)).place, '/login#oidc=other_identity');
  });

  test('loses what somebody else may have prepared, if nobody has confirmed the address', async () => {
    const who = await open.person({ password: 'a password of the attacker', email_confirmed: false });
    const key = await makeKey(open.db, who, '*');
    await makeSshKey(open.db, who.user_id);
    const { session } = await makeSession(open.db, who.user_id);
    const { sub } = newAccount({ email: who.email });
    const browser = new OidcBrowser(open);
    await browser.logIn(sub);
    const me = await meOf(browser, open);
    assert.deepEqual([me.id, me.password_login], [who.user_id, false]);
    assert.equal((await open.as(key.key).get('/v1/instances')).status, 401);
    assert.equal((await open.as(session).get('/v1/me')).status, 401);
    const ssh_keys = await open.db
      .selectFrom('ssh_keys')
      .select('id')
      .where('user_id', '=', who.user_id)
      .execute();
    assert.deepEqual(ssh_keys, []);
    const login = await open.client.post('/v1/auth/login', {
      email: who.email,
      password: 'a password of the attacker',
    });
    assert.equal(login.status, 401);
  });

  test('is not linked if it asks for a second factor', async () => {
    const who = await api.person();
    await api.db
      .insertInto('mfa_factors')
      .values({
        id: newId('mfa'),
        user_id: who.user_id,
        type: 'totp',
        name: 'phone',
        confirmed_at: new Date(),
      })
      .execute();
    const { sub } = newAccount({ email: who.email });
    assert.equal((await new OidcBrowser(api).logIn(sub)).place, '/login#oidc=second_factor');
  });
});

describe('for its operator', () => {
  test('berth doctor names a provider that does not answer, and mapped organisations that do not exist', async () => {
    const unknown = newId('org');
    const mapped = [...groups, { group: 'x', org_id: unknown, role: 'member' }] as const;
    const { oidc } = oidcContext(provider, PUBLIC, mapped);
    const { db, quotas, installation } = api.context;
    const about = async () =>
      (await findWeaknesses({ db, quotas, installation, oidc })).filter(
        ({ check }) => check === 'OpenID provider',
      );
    assert.deepEqual(
      (await about()).map(({ found }) => found),
      [`BERTH_OIDC_GROUPS names ${unknown}, which does not exist`],
    );
    provider.state.down = true;
    const [down] = await about();
    provider.state.down = false;
    assert.match(down?.found ?? '', new RegExp(`^${provider.issuer} gives no usable document: `));
    assert.equal(down?.next, `curl ${provider.issuer}/.well-known/openid-configuration`);
  });

  test('the two redirects and the begin of sudo count against the address', async () => {
    const limited = await apiForFile({
      context: {
        ...oidcContext(provider, PUBLIC),
        rate_limits: { principal: 1_200, address: 2, changes: 1_000 },
      },
    });
    const first = new OidcBrowser(limited);
    const { place } = await first.visit('/v1/auth/oidc/login');
    assert.match(place, /^\/interaction\//);
    const { sub } = newAccount();
    const there = await first.visit(provider.issuer + place, { account: sub });
    assert.equal(there.place, '/login#oidc=no_account', 'the second that counts');
    assert.equal((await first.visit('/v1/auth/oidc/login')).place, '/login#oidc=too_many_requests');
    const who = await limited.person();
    assertError(await limited.as(who).post('/v1/auth/oidc/sudo', {}), 'RATE_LIMITED');
  });
});
