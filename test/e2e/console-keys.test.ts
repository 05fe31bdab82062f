/** API and SSH keys in the console: their origin, and revocation with their children. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { NO_BROWSER } from '../support/browser.ts';
import { type ConsoleForFile, consoleForFile } from '../support/console-visit.ts';
import { randomPublicKey } from '../support/people.ts';

describe('the console', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { api, visit }: ConsoleForFile = await consoleForFile();

  test('shows which key created a key, and also revokes its children on request', async () => {
    const { who, page, button, dialog, leave } = await visit();
    const make = async (as: string, name: string) => {
      const made = await api.as(as).post<{ key: string }>('/v1/api-keys', { name, scope: '*' });
      assert.equal(made.status, 201, made.text);
      return made.body.key;
    };
    const leaked = await make(who.session, 'leaked');
    await make(leaked, 'child');
    const body = { name: 'laptop', public_key: randomPublicKey().line };
    assert.equal((await api.as(leaked).post('/v1/me/ssh-keys', body)).status, 201);
    await page.goto('/ssh-keys');
    await page.getByRole('row', { name: /laptop.*only Org/ }).waitFor();

    await page.goto('/api-keys');
    await page.getByRole('row', { name: /child.*created by leaked/ }).waitFor();
    await button('Revoke leaked').click();
    await dialog().getByLabel('Also revoke keys created with it').check();
    await dialog().getByRole('button', { name: 'Revoke' }).click();
    await page.getByText('No API keys yet').waitFor();
    await page.goto('/ssh-keys');
    await page.getByText('No SSH keys yet').waitFor();
    await leave();
  });

  test('names the service account that owns a key', async () => {
    const { who, page, leave } = await visit();
    const account = await api
      .as(who)
      .post<{ id: string }>('/v1/service-accounts', { name: 'ci', scope: '*' });
    const body = { name: 'builds', scope: '*', service_account_id: account.body.id };
    assert.equal((await api.as(who).post('/v1/api-keys', body)).status, 201);
    await page.goto('/api-keys');
    await page.getByRole('row', { name: /builds service account ci/ }).waitFor();
    await leave();
  });

  test('names the permissions of a key, also on a phone, and warns of a name in use', async () => {
    const { who, page, button, dialog, leave } = await visit();
    await api.as(who).post('/v1/api-keys', { name: 'deploys', scope: '*' });
    await page.goto('/api-keys');
    await page.getByRole('cell', { name: 'All permissions', exact: true }).waitFor();
    await page.setViewportSize({ width: 390, height: 800 });
    await page.getByRole('row', { name: /deploys Key berth_live_\S+ Permissions All permissions/ }).waitFor();
    await button('New API key').click();
    await dialog().getByLabel('Name').fill('deploys');
    await dialog().getByText('Another API key has this name.').waitFor();
    await dialog().getByLabel('Name').fill('deploys-2');
    await dialog().getByText('Another API key has this name.').waitFor({ state: 'detached' });
    await leave();
  });
});
