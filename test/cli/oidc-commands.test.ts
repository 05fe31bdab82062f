/** `berth user sync` and `berth user unlink`, with a real OpenID provider. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { present } from '../../src/shared/assert.ts';
import { newId, type UserId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { OidcBrowser } from '../support/oidc-browser.ts';
import { oidcContext, startProvider } from '../support/oidc-provider.ts';
import { serverCliForFile } from '../support/server-cli.ts';

const PUBLIC = 'http://berth.test';
const team = newId('org');
const provider = await startProvider([`${PUBLIC}/v1/auth/oidc/callback`]);
after(() => provider.close());
const api = await apiForFile({
  context: oidcContext(provider, PUBLIC, [{ group: 'staff', org_id: team, role: 'admin' }]),
});
const { settings, berth, berthWith, actions } = await serverCliForFile(api);
const owner = await api.person();
await api.db
  .insertInto('organisations')
  .values({ id: team, name: 'Team', billing_email: 't@example.org' })
  .execute();
await api.db
  .insertInto('memberships')
  .values({ org_id: team, user_id: owner.user_id, role: 'owner' })
  .execute();
const sync = (...args: string[]) =>
  berthWith(
    {
      ...settings,
      BERTH_PUBLIC_URL: PUBLIC,
      BERTH_OIDC_ISSUER: provider.issuer,
      BERTH_OIDC_CLIENT_ID: provider.client_id,
      BERTH_OIDC_CLIENT_SECRET: provider.client_secret,
      BERTH_OIDC_GROUPS: `staff=${team}:admin`,
    },
    ['user', ...args],
  );

async function newPerson(sub: string) {
  const email = `${sub}@example.org`;
  const account = { email, email_verified: true, groups: ['staff'] };
  provider.accounts.set(sub, account);
  const browser = new OidcBrowser(api);
  await browser.logIn(sub);
  const session = present(await browser.session(), 'a session');
  const { id } = (await api.as(session).get<{ id: UserId }>('/v1/me')).body;
  return { email, account, id, session, browser };
}

describe('berth user sync', () => {
  test('lets a removed group take effect at once, and says what has changed', async () => {
    const ada = await newPerson('ada');
    const same = await sync('sync', ada.email);
    assert.deepEqual([same.code, same.out], [0, `${ada.email}: nothing changed\n`], same.err);
    ada.account.groups = [];
    const removed = await sync('sync', ada.email);
    assert.equal(removed.out, `${ada.email}: no longer admin of ${team}\n`);
    const left = await api.db
      .selectFrom('memberships')
      .select('org_id')
      .where('user_id', '=', ada.id)
      .execute();
    assert.ok(!left.some(({ org_id }) => org_id === team));
    assert.ok((await actions(team)).includes('member.remove_by_group by system'));
  });

  test('ends the sessions of an account that the provider refuses, and looks at all accounts without an address', async () => {
    const eve = await newPerson('eve');
    provider.accounts.delete('eve');
    const { out, code } = await sync('sync');
    assert.equal(code, 0);
    assert.match(
      out,
      /^eve@example\.org: the provider refuses it; ended 1 session\. Its API and SSH keys remain$/m,
    );
    assert.match(out, /^ada@example\.org: nothing changed$/m);
    assert.equal((await api.as(eve.session).get('/v1/me')).status, 401);
  });

  test('changes nothing and exits with 6 while the provider does not answer', async () => {
    const bob = await newPerson('bob');
    provider.state.down = true;
    const { code, err } = await sync('sync', bob.email);
    provider.state.down = false;
    assert.equal(code, 6, err);
    assert.match(err, /gave no usable answer/);
    assert.equal((await api.as(bob.session).get('/v1/me')).status, 200);
  });

  test('says which account has never logged in there, and that no provider is set', async () => {
    const stranger = await sync('sync', owner.email);
    assert.match(stranger.err, /is not linked to 127\.0\.0\.1:\d+: it has never logged in there/);
    const unset = await berth('user', 'sync');
    assert.match(unset.err, /BERTH_OIDC_ISSUER is not set/);
  });
});

describe('berth user unlink', () => {
  test('ends the sessions, and lets the next login with the address link again', async () => {
    const kim = await newPerson('kim');
    const { out } = await sync('unlink', kim.email);
    assert.match(out, /^kim@example\.org is no longer linked, and its sessions have ended/);
    assert.equal((await api.as(kim.session).get('/v1/me')).status, 401);
    provider.accounts.set('kim-2', { email: kim.email, email_verified: true, groups: ['staff'] });
    const browser = new OidcBrowser(api);
    assert.equal((await browser.logIn('kim-2')).place, '/');
    const session = present(await browser.session(), 'a session');
    assert.equal((await api.as(session).get<{ id: string }>('/v1/me')).body.id, kim.id);
    assert.ok((await actions(team)).includes('auth.unlink_identity by operator'));
  });
});
