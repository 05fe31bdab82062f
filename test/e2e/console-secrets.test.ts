/** Secrets in the console: set, replace, delete, and what is said of them. No guests. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { secretsOf } from '../../src/control-plane/secrets/seal-value.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { NO_BROWSER } from '../support/browser.ts';
import { type ConsoleForFile, consoleForFile } from '../support/console-visit.ts';
import { dialogFindings } from '../support/dialogs.ts';
import { pageFindings } from '../support/page-findings.ts';

describe('secrets in the console', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { api, browser, visit }: ConsoleForFile = await consoleForFile();
  after(() => browser.assertQuiet());

  test('a secret is set, replaced and deleted; the page never has its value', async () => {
    const { who, page, dialog, button, leave } = await visit();
    const { id, name } = await api.instance(who, { name: 'web' });
    const kept = async () => {
      const found = (await secretsOf(api.db, api.context.secrets, [id as InstanceId])).get(id as InstanceId);
      return found?.map((each) => [each.name, each.hosts.join(' '), each.value]) ?? [];
    };
    const path = `/instances/${name}/secrets`;
    await page.goto(path);
    await page.getByRole('heading', { name: 'No secrets yet' }).waitFor();
    await page.getByText("sends a request's headers back").waitFor();
    await button('Set a secret').click();
    assert.deepEqual(await dialogFindings(page, button('Set a secret')), []);
    await button('Set a secret').click();
    await dialog().getByLabel('Name').fill('API_KEY');
    await dialog().getByLabel('Value').fill('first-value');
    assert.equal(await dialog().getByLabel('Value').getAttribute('type'), 'password');
    await dialog().getByLabel('Hosts').fill('10.0.0.1');
    await dialog().getByRole('button', { name: 'Set', exact: true }).click();
    await dialog()
      .getByText(/private or special address/)
      .waitFor();
    await dialog().getByLabel('Hosts').fill('api.example.com\n*.example.org');
    await dialog().getByRole('button', { name: 'Set', exact: true }).click();
    await page.getByText('BERTH_SECRET_API_KEY').waitFor();
    await page.getByRole('cell', { name: 'api.example.com, *.example.org' }).waitFor();
    assert.deepEqual(await kept(), [['API_KEY', 'api.example.com *.example.org', 'first-value']]);
    assert.deepEqual(await pageFindings(page, new URL(page.url()).origin, path), []);
    await page.getByRole('button', { name: 'Replace the value of API_KEY' }).click();
    assert.equal(await dialog().getByLabel('Value').inputValue(), '');
    await dialog().getByLabel('Value').fill('second-value');
    await dialog().getByRole('button', { name: 'Set', exact: true }).click();
    await dialog().waitFor({ state: 'detached' });
    assert.deepEqual(await kept(), [['API_KEY', 'api.example.com *.example.org', 'second-value']]);
    assert.doesNotMatch(await page.content(), /first-value|second-value/);
    await page.getByRole('button', { name: 'Delete API_KEY' }).click();
    await dialog().getByRole('button', { name: 'Delete' }).click();
    await page.getByRole('heading', { name: 'No secrets yet' }).waitFor();
    assert.deepEqual(await kept(), []);
    await leave();
  });
});
