/** The operator's page, and the commands of forms, in a browser. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { accessibilityFindings, NO_BROWSER, overhangPx } from '../support/browser.ts';
import { type ConsoleForFile, consoleForFile } from '../support/console-visit.ts';
import { pageFindings } from '../support/page-findings.ts';

describe('the console', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { api, browser, visit }: ConsoleForFile = await consoleForFile();
  const origin = api.origin.replace('127.0.0.1', 'localhost');

  test('shows the installation to its operator, and nobody else a way there', async () => {
    const customer = await visit();
    assert.equal(await customer.place('Operator').count(), 0);
    await customer.page.goto('/operator');
    await customer.heading('Not found').waitFor();
    await customer.leave();

    const { org_id } = await api.person();
    await api.db
      .updateTable('organisations')
      .set({ operator: true, name: 'Harbour' })
      .where('id', '=', org_id)
      .execute();
    const member = await visit('/', { org_id, role: 'member' });
    assert.equal(await member.place('Operator').count(), 0);
    await member.leave();

    const { page, place, heading, leave } = await visit('/', { org_id, role: 'admin' });
    await place('Operator').click();
    for (const part of ['Findings', 'Hosts', 'Storage and mail', 'Organisations', 'Images'])
      await heading(part).waitFor();
    await page.getByRole('row', { name: /^local this server up, protocol/ }).waitFor();
    await page.getByRole('row', { name: /^Harbour operator org_/ }).waitFor();
    await page.getByText('No mail server is set').waitFor();
    assert.deepEqual(await pageFindings(page, origin, '/operator'), []);
    browser.assertQuiet();
    await leave();
  });

  test('tells what an audited change was, filters by action, and says that an address does not exist', async () => {
    const { who, page, heading, leave } = await visit();
    const { id, name } = await api.instance(who);
    const wide = {
      wake_on_connect: true,
      auto_flush_seconds: 90,
      generations_keep: { last: 9, daily_days: 9 },
    };
    for (const change of [wide, { cpus: 4 }, { idle_timeout_seconds: 600 }])
      await api.as(who).patch(`/v1/instances/${id}`, change);
    await page.goto('/audit');
    await page.getByRole('row', { name: /^instance\.change cpus: 4 / }).waitFor();
    await page.getByRole('row', { name: /^instance\.change idle-timeout: 10m / }).waitFor();
    // Long details leave an address its room.
    const by = await page.getByRole('row').nth(1).getByRole('cell').nth(2).boundingBox();
    assert.ok(by && by.width > 150, `the actor has ${by?.width} px`);
    await page.getByLabel('Action').selectOption('instance.create');
    await page.getByRole('button', { name: 'Filter' }).click();
    await page
      .getByRole('row', { name: /^instance\.change/ })
      .first()
      .waitFor({ state: 'detached' });
    await page.getByRole('row', { name: new RegExp(`^instance\\.create .*${name}`) }).waitFor();
    assert.deepEqual(await pageFindings(page, origin, '/audit'), []);
    const answer = await page.goto('/nowhere');
    assert.equal(answer?.status(), 404);
    await heading('There is no such page').waitFor();
    await leave();
  });

  test('shows the commands of the create form as it is filled in, and copies them', async () => {
    const { page, button, dialog, leave } = await visit();
    await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
    await button('New instance').first().click();
    await page.getByText('Copy as command line or curl').click();
    await page.getByText('Give it a name first.').waitFor();
    await dialog().getByLabel('Name').fill('web');
    await page.getByText('berth create web --start', { exact: true }).waitFor();
    await dialog().getByLabel('CPUs').fill('4');
    await dialog().getByLabel('Start it now').uncheck();
    await page.getByText('berth create web --cpus 4', { exact: true }).waitFor();
    await page.getByText(/^More: /).click();
    await dialog().getByLabel('What the VM may reach').selectOption('allow');
    await dialog().getByLabel('Allowed hosts').fill('example.com *.debian.org');
    const egress = "--egress allow --allow example.com --allow '*.debian.org'";
    await page.getByText(`berth create web --cpus 4 ${egress}`, { exact: true }).waitFor();
    await dialog().getByLabel('Restart', { exact: true }).selectOption('on_failure');
    await page
      .getByText(`berth create web --cpus 4 --restart on_failure ${egress}`, { exact: true })
      .waitFor();
    await button('Copy the curl command').click();
    await page.getByText('Copied').waitFor();
    const copied = String(await page.evaluate('navigator.clipboard.readText()'));
    assert.equal(
      copied,
      [
        `curl -sS -X POST "${origin}/v1/instances"`,
        '-H "Authorization: Bearer $BERTH_API_KEY"',
        "-H 'Content-Type: application/json'",
        `-d '{"name":"web","cpus":4,"restart":"on_failure","egress":{"mode":"allow","allow":["example.com","*.debian.org"]}}'`,
      ].join(' \\\n  '),
    );
    for (const colorScheme of ['light', 'dark'] as const) {
      await page.emulateMedia({ colorScheme });
      assert.deepEqual(await accessibilityFindings(page), []);
    }
    await page.setViewportSize({ width: 390, height: 800 });
    assert.ok((await overhangPx(page)) <= 0);
    await leave();
  });

  test('shows the command of what was changed in the settings, and none before', async () => {
    const { who, page, button, leave } = await visit();
    const { name } = await api.instance(who);
    await page.goto(`/instances/${name}/settings`);
    await page.getByText('Copy as command line or curl').click();
    await page.locator('details').getByText('Nothing is changed yet.').waitFor();
    const save = button('Save').and(page.locator('[aria-disabled="true"]'));
    await save.waitFor();
    await page.getByLabel('CPUs').fill('3');
    await page.getByText(`berth set ${name} --cpus 3`, { exact: true }).waitFor();
    await save.waitFor({ state: 'detached' });
    await page.getByLabel('CPUs').fill('1');
    await save.waitFor();
    await page.locator('.form-end').getByText('Nothing is changed yet.').waitFor();
    await leave();
  });

  test('restarts a failed VM where that is chosen in the settings, and says so on the overview', async () => {
    const { who, page, button, leave } = await visit();
    const { id, name } = await api.instance(who);
    const restart = page
      .locator('.fact, div')
      .filter({ hasText: /^Restart(never|on failure)$/ })
      .first();
    await page.goto(`/instances/${name}`);
    await restart.filter({ hasText: 'never' }).waitFor();
    await page.goto(`/instances/${name}/settings`);
    await page.getByLabel('Restart', { exact: true }).selectOption('on failure');
    await button('Save').click();
    await page.getByText('Saved.').waitFor();
    const { body } = await api.as(who).get<{ restart: string }>(`/v1/instances/${id}`);
    assert.equal(body.restart, 'on_failure');
    await page.goto(`/instances/${name}`);
    await restart.filter({ hasText: 'on failure' }).waitFor();
    await leave();
  });

  test('shows durations as its forms and the command line take them, and leads from the generations to their setting', async () => {
    const { who, page, heading, leave } = await visit();
    const durations = { idle_timeout_seconds: 86_400, auto_flush_seconds: 600 };
    const { name } = await api.instance(who, durations);
    await page.goto(`/instances/${name}`);
    await page.getByText('after 1d', { exact: true }).waitFor();
    await page.getByText('every 10m while it runs', { exact: true }).waitFor();
    await page.goto(`/instances/${name}/generations`);
    await page.getByText('Berth flushes every 10m while the VM runs.').waitFor();
    await page.getByRole('link', { name: 'Change this' }).click();
    await heading('Settings').waitFor();
    assert.equal(await page.getByLabel('Automatic flush every').inputValue(), '10m');
    await leave();
  });
});
