/** The console of people who log in at a real OpenID provider, in a browser. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import type { Page } from 'playwright-core';
import type { DeviceLoginStart } from '../../client/src/generated.ts';
import { accessibilityFindings, layoutShifts, NO_BROWSER } from '../support/browser.ts';
import { type ConsoleForFile, consoleForFile } from '../support/console-visit.ts';
import { press } from '../support/keyboard.ts';
import { oidcContext, startProvider, type TestProvider } from '../support/oidc-provider.ts';
import { ownPort } from '../support/own-ports.ts';

/** For docs/images, when asked for. The provider of a test has no name that a picture could show. */
async function picture(page: Page): Promise<void> {
  const folder = process.env['BERTH_TEST_PICTURES'];
  if (folder === undefined) return;
  await page.route('**/settings.json', async (route) => {
    const response = await route.fetch();
    const settings = (await response.json()) as { readonly oidc: object };
    await route.fulfill({
      response,
      json: { ...settings, oidc: { ...settings.oidc, name: 'id.example.com' } },
    });
  });
  await page.reload();
  await page.getByRole('link', { name: 'Log in with id.example.com' }).waitFor();
  await page.screenshot({ path: join(folder, 'console-login.png') });
  await page.unrouteAll();
  await page.reload();
}

describe('the console with an OpenID provider', { skip: NO_BROWSER }, async () => {
  const ports = [await ownPort(), await ownPort()] as const;
  const origins = ports.map((port) => `http://localhost:${port}`);
  const provider: TestProvider = await startProvider(origins.map((each) => `${each}/v1/auth/oidc/callback`));
  after(() => provider.close());
  const both: ConsoleForFile = await consoleForFile(oidcContext(provider, origins[0] ?? ''), ports[0]);
  const alone: ConsoleForFile = await consoleForFile(
    { ...oidcContext(provider, origins[1] ?? ''), password_login: false, signups: 'open' },
    ports[1],
  );
  const name = new URL(provider.issuer).host;

  before(() => {
    provider.accounts.set('ada', { email: 'ada@example.org', email_verified: true, name: 'Ada' });
  });

  const open = async (place: ConsoleForFile, path: string): Promise<Page> => {
    const window = await place.browser.newContext({ baseURL: origins[place === both ? 0 : 1] ?? '' });
    const page = await window.newPage();
    await page.goto(path);
    return page;
  };
  const logInThere = async (page: Page, account: string) => {
    // Not by label: the dialog that leads to the provider is about an account too.
    await page.getByRole('textbox', { name: 'Account', exact: true }).fill(account);
    await page.getByRole('button', { name: 'Continue' }).click();
  };
  const link = (page: Page) => page.getByRole('link', { name: `Log in with ${name}` });

  test('shows only the provider where passwords are off; by keyboard the login leads back to the page that was asked for', async () => {
    const page = await open(alone, '/usage');
    await link(page).waitFor();
    assert.equal(await page.getByLabel('Password').count(), 0);
    assert.equal(await page.getByRole('button', { name: /passkey/ }).count(), 0);
    assert.deepEqual(await accessibilityFindings(page, { every: true }), []);
    assert.deepEqual(await layoutShifts(page), []);
    await press(page, link(page));
    await logInThere(page, 'ada');
    await page.getByRole('heading', { name: 'Usage', exact: true }).waitFor();
    assert.equal(new URL(page.url()).pathname, '/usage');
    await page.reload();
    await page.getByRole('heading', { name: 'Usage', exact: true }).waitFor();
    await page.goto('/account');
    await page.getByRole('heading', { name: 'Account', exact: true }).waitFor();
    assert.equal(await page.getByLabel('Current password').count(), 0);
    await page.getByRole('button', { name: 'Log out' }).first().click();
    await link(page).waitFor();
    await page.context().close();
  });

  test('asks for a new login at the provider before a destructive action, which then needs no other', async () => {
    const page = await open(alone, '/account');
    await link(page).click();
    await logInThere(page, 'ada');
    const remove = page.getByRole('button', { name: 'Delete my account' });
    await remove.click();
    await page.getByLabel(/Type/).fill('ada@example.org');
    await page
      .getByRole('dialog')
      .getByRole('button', { name: /Delete/ })
      .click();
    const confirm = page.getByRole('button', { name: `Continue at ${name}` });
    await confirm.waitFor();
    assert.deepEqual(await accessibilityFindings(page), []);
    await confirm.click();
    // The provider knows the browser still, and asks all the same.
    await logInThere(page, 'ada');
    await page.getByText('Confirmed.').waitFor();
    assert.equal(new URL(page.url()).pathname, '/account');
    await remove.click();
    await page.getByLabel(/Type/).fill('ada@example.org');
    await page
      .getByRole('dialog')
      .getByRole('button', { name: /Delete/ })
      .click();
    await link(page).waitFor();
    await page.context().close();
  });

  test('says what happened where the person refuses, or the provider does not answer', async () => {
    const page = await open(alone, '/');
    await link(page).click();
    await page.getByRole('button', { name: 'Refuse' }).click();
    await page.getByText(`${name} did not confirm who you are`).waitFor();
    assert.equal(new URL(page.url()).hash, '');
    assert.deepEqual(await accessibilityFindings(page), []);
    await page.context().close();
  });

  test('offers both where passwords are on, and logs another tab in', async () => {
    const page = await open(both, '/');
    await page.getByLabel('Password', { exact: true }).waitFor();
    assert.deepEqual(await accessibilityFindings(page, { every: true }), []);
    await picture(page);
    const who = await both.api.person();
    provider.accounts.set('grace', { email: who.email, email_verified: true });
    const other = await page.context().newPage();
    await other.goto('/');
    await link(other).click();
    await logInThere(other, 'grace');
    await other.getByRole('button', { name: 'Log out' }).waitFor();
    await page.getByRole('button', { name: 'Log out' }).waitFor();
    await page.context().close();
  });

  test('lets a program log in once the person has logged in, and has seen who asks', async () => {
    const ask = async () =>
      (await alone.api.client.post<DeviceLoginStart>('/v1/auth/device-logins', {})).body;
    const take = ({ device_code }: DeviceLoginStart) =>
      alone.api.client.post('/v1/auth/device-logins/token', { device_code });
    provider.accounts.set('kim', { email: 'kim@example.org', email_verified: true });
    const asked = await ask();
    const { pathname, search } = new URL(asked.url);
    const page = await open(alone, pathname + search);
    await page.getByText('Log in here first').waitFor();
    await link(page).click();
    await logInThere(page, 'kim');
    await page.getByText(asked.user_code).waitFor();
    await page.getByText('127.0.0.1').waitFor();
    await page.getByText('It can then act as kim@example.org.').waitFor();
    assert.deepEqual(await accessibilityFindings(page, { every: true }), []);
    assert.equal((await take(asked)).status, 409);
    await press(page, page.getByRole('button', { name: 'Confirm' }));
    await page.getByText('Confirmed. The program goes on').waitFor();
    assert.equal((await take(asked)).status, 200);
    await page.reload();
    await page.getByText(`No program waits with the code ${asked.user_code}`).waitFor();

    const other = await ask();
    await page.goto('/device');
    await page.getByLabel('Code').fill(other.user_code.toLowerCase().replace('-', ' '));
    await page.getByRole('button', { name: 'Continue' }).click();
    await page.getByRole('button', { name: 'Refuse' }).click();
    await page.getByText('Refused.').waitFor();
    assert.equal((await take(other)).status, 401);
    await page.context().close();
  });

  test('remembers an invitation through the login at the provider', async () => {
    provider.accounts.set('lin', { email: 'lin@example.org', email_verified: true });
    const inviter = await alone.api.person();
    const { body } = await alone.api
      .as(inviter)
      .post<{ accept_url: string }>(`/v1/orgs/${inviter.org_id}/invitations`, {
        email: 'lin@example.org',
        role: 'member',
      });
    const page = await open(alone, `/invitation${new URL(body.accept_url).hash}`);
    await link(page).click();
    await logInThere(page, 'lin');
    await page.getByRole('button', { name: 'Join the organisation' }).click();
    await page.getByRole('heading', { name: 'Instances', exact: true }).waitFor();
    assert.equal(await page.evaluate('sessionStorage.length'), 0);
    const role = await alone.api.db
      .selectFrom('memberships')
      .innerJoin('users', 'users.id', 'memberships.user_id')
      .select('role')
      .where('org_id', '=', inviter.org_id)
      .where('users.email', '=', 'lin@example.org')
      .executeTakeFirst();
    assert.deepEqual(role, { role: 'member' });
    await page.context().close();
  });

  test('sends nothing to other servers', () => {
    both.browser.assertQuiet();
    alone.browser.assertQuiet();
  });
});
