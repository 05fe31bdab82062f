/** Second factors in the console, without a guest: adding one requires the password. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { addAuthenticator, NO_BROWSER } from '../support/browser.ts';
import { type ConsoleForFile, consoleForFile, PASSWORD } from '../support/console-visit.ts';
import type { Person } from '../support/people.ts';
import { totpCode } from '../support/totp-code.ts';

describe('the console', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { api, visit }: ConsoleForFile = await consoleForFile();

  const factorsOf = async ({ user_id }: Person) => {
    const rows = await api.db
      .selectFrom('mfa_factors')
      .select(['type', 'confirmed_at'])
      .where('user_id', '=', user_id)
      .execute();
    return rows.map(
      ({ type, confirmed_at }) => `${type} ${confirmed_at === null ? 'unconfirmed' : 'confirmed'}`,
    );
  };

  test('asks for the password before it adds an authenticator app, and goes on by itself', async () => {
    const { who, page, button, heading, dialog, leave } = await visit('/account');
    await button('Add an app').click();
    await button('Next').click();
    await heading('Confirm it is you').waitFor();
    assert.deepEqual(await factorsOf(who), []);
    await dialog().getByLabel('Password').fill(PASSWORD);
    await button('Continue').click();
    await page.getByRole('img', { name: /QR code/ }).waitFor();
    await dialog().getByText('Type the secret instead').click();
    const secret = await dialog().locator('.copyable code').innerText();
    await dialog()
      .getByLabel('Code', { exact: true })
      .fill(totpCode(secret, Date.now() / 1000));
    await button('Confirm').click();
    await heading('Recovery codes').waitFor();
    assert.deepEqual(await factorsOf(who), ['totp confirmed']);
    await leave();
  });

  test('adds no passkey where the password is not given', async () => {
    const { who, page, button, heading, dialog, leave } = await visit('/account');
    await addAuthenticator(page);
    await button('Add a passkey').click();
    await heading('Confirm it is you').waitFor();
    await dialog().getByRole('button', { name: 'Cancel' }).click();
    await heading('Confirm it is you').waitFor({ state: 'detached' });
    assert.deepEqual(await factorsOf(who), []);
    await leave();
  });
});
