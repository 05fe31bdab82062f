/** What all pages of the console share: the connection, the palette, forms, times, and the pages before the login. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { describe, test } from 'node:test';
import { NO_BROWSER, overhangPx } from '../support/browser.ts';
import { type ConsoleForFile, consoleForFile } from '../support/console-visit.ts';
import { dialogFindings } from '../support/dialogs.ts';
import { press, tabTo } from '../support/keyboard.ts';
import { ownPort } from '../support/own-ports.ts';
import { pageFindings } from '../support/page-findings.ts';
import { until } from '../support/waiting.ts';

/** It takes 5 s of silence and 4 s of a question; the rest is for a busy machine. The stream's own limit is 45 s. */
const HUNG_NOTICED_MS = 25_000;

describe('the console', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { api, browser, visit }: ConsoleForFile = await consoleForFile({}, await ownPort());

  /** The server is gone for its clients. @returns a function that brings it back */
  const stopServer = async () => {
    const { server } = api.app;
    const { port, address } = server.address() as AddressInfo;
    const closed = once(server, 'close');
    server.close();
    server.closeAllConnections();
    await closed;
    return async () => {
      server.listen(port, address);
      await once(server, 'listening');
    };
  };

  test('says that its connection is lost and since when, refuses actions, and is current once it is back', async () => {
    const { who, page, button, listenAt, leave } = await visit();
    const { id, name } = await api.instance(who);
    await listenAt(`/instances/${name}`);
    await button('Start').waitFor();
    const startServer = await stopServer();
    const banner = page.getByRole('status').filter({ hasText: 'Connection lost. Reconnecting…' });
    await banner.filter({ hasText: /Shown as of \d\d:\d\d\./ }).waitFor();
    await button('Start').click();
    await page.locator('.toast.bad').filter({ hasText: 'Not done: the connection' }).waitFor();
    const labels = JSON.stringify({ changed: 'meanwhile' });
    await api.db.updateTable('instances').set({ labels }).where('id', '=', id).execute();
    await startServer();
    await page.getByText('Connected again').waitFor();
    assert.equal(await banner.count(), 0);
    await page.getByText('changed=meanwhile').waitFor();
    await button('Start').click();
    await page.locator('main [data-state="starting"]').first().waitFor();
    await leave();
  });

  test('notices a server that hangs, although its connections stay open, and that it is back', async () => {
    const { page, listenAt, heading, leave } = await visit();
    await listenAt('/account');
    await heading('Sessions').waitFor();
    const hung: (() => Promise<void>)[] = [];
    // As with a stopped process: requests get no answer and no refusal.
    await page.route('**/*', (route) => void hung.push(() => route.fallback()));
    const banner = page.getByRole('status').filter({ hasText: 'Connection lost. Reconnecting…' });
    await banner.waitFor({ timeout: HUNG_NOTICED_MS });
    await page.unrouteAll();
    for (const goOn of hung) await goOn().catch(() => undefined);
    await page.getByText('Connected again').waitFor();
    assert.equal(await banner.count(), 0);
    await leave();
  });

  test('opens by itself once the server answers', async () => {
    const { page, heading, leave } = await visit();
    await page.route('**/v1/auth/refresh', (route) => route.abort());
    await page.reload();
    await heading('The server does not answer').waitFor();
    await page.unrouteAll();
    await heading('No instances yet').waitFor();
    await leave();
  });

  test('goes to pages and instances, and runs actions of the current one, from the palette', async () => {
    const { who, page, button, heading, dialog, leave } = await visit();
    const { name } = await api.instance(who);
    await page.reload();
    await page.getByRole('link', { name }).waitFor();
    await page.keyboard.press('Control+k');
    await dialog().waitFor();
    assert.deepEqual(await dialogFindings(page, page.locator('main')), []);
    await press(page, button('Go to or do'));
    await dialog().waitFor();
    await page.keyboard.type('audit\n');
    await heading('Audit log').waitFor();
    await page.keyboard.press('Control+k');
    await dialog().waitFor();
    await page.keyboard.type(name);
    // The instance itself is the best fit; its action comes after it.
    const chosen = dialog().getByRole('option', { selected: true });
    await chosen.filter({ hasText: 'Instance, stopped' }).waitFor();
    await page.keyboard.press('Enter');
    await heading(name).waitFor();
    await page.keyboard.press('Control+k');
    await chosen.filter({ hasText: `Start ${name}` }).waitFor();
    assert.equal(
      await dialog()
        .getByRole('option', { name: `Stop ${name}` })
        .count(),
      0,
    );
    await page.keyboard.press('ArrowDown');
    await chosen.filter({ hasText: 'Generations' }).waitFor();
    await page.keyboard.press('ArrowUp');
    await page.keyboard.press('Enter');
    await page.locator('main [data-state="starting"]').first().waitFor();
    await page.keyboard.press('Control+k');
    await dialog().waitFor();
    await page.keyboard.type('create\n');
    await heading('New instance').waitFor();
    await leave();
  });

  test('offers in the palette only what the role may do', async () => {
    const owner = await api.person();
    const { name } = await api.instance(owner);
    const { page, dialog, leave } = await visit('/', { org_id: owner.org_id, role: 'billing' });
    await page.keyboard.press('Control+k');
    await dialog().getByRole('option', { name: 'Account' }).waitFor();
    await page.keyboard.type(name);
    await page.keyboard.press('Control+a');
    await page.keyboard.type('start');
    await dialog().getByText('Nothing fits').waitFor();
    await page.keyboard.press('Control+a');
    await page.keyboard.type('audit');
    await dialog().getByText('Nothing fits').waitFor();
    await leave();
  });

  test('shows errors of a form at its fields, moves the focus to the first, and takes them back on an edit', async () => {
    const { page, button, dialog, leave } = await visit();
    await button('New instance').first().click();
    await button('Create').click();
    await dialog().getByText('Name is missing.').waitFor();
    const name = dialog().getByLabel('Name', { exact: true });
    assert.equal(await name.evaluate((field) => field === field.ownerDocument.activeElement), true);
    assert.equal(await name.getAttribute('aria-invalid'), 'true');
    await name.fill('Web Server');
    assert.equal(await dialog().getByText('Name is missing.').count(), 0);
    await dialog().getByLabel('Memory, MiB').fill('1');
    await page.keyboard.press('Enter');
    await dialog().getByText('Use lowercase letters, digits and hyphens.').waitFor();
    await dialog().getByText('Enter 128 or more.').waitFor();
    await name.fill('web');
    await dialog().getByLabel('Memory, MiB').fill('256');
    await dialog().locator('summary').first().click();
    await dialog().getByLabel('Labels').fill('novalue');
    await dialog().locator('summary').first().click();
    await button('Create').click();
    // Its part of the form was folded.
    await dialog().getByText('Write labels as key=value').waitFor();
    await leave();
  });

  test('shows an error of a long form in view', async () => {
    const { who, page, button, dialog, alert, leave } = await visit();
    const { name } = await api.instance(who);
    await button('New instance').first().click();
    await dialog().getByLabel('Name', { exact: true }).fill(name);
    await dialog().locator('summary').first().click();
    await button('Create').click();
    await alert().filter({ hasText: 'exists already' }).waitFor();
    const [told, form] = await Promise.all([alert().boundingBox(), dialog().boundingBox()]);
    assert.ok(told && form && told.y + told.height <= form.y + form.height, 'below what is seen of it');
    await page.keyboard.press('Escape');
    await leave();
  });

  test("shows the server's findings at the fields that they are about", async () => {
    const { page, button, dialog, leave } = await visit('/ssh-keys');
    await button('Add a key').first().click();
    await dialog().getByLabel('Public key').fill('not a key');
    await button('Add').click();
    const field = dialog().getByLabel('Public key');
    await until('the field is wrong', async () => (await field.getAttribute('aria-invalid')) === 'true');
    assert.equal(await page.getByRole('alert').filter({ hasText: /\S/ }).count(), 0);
    await leave();
  });

  test('shows exact times by the keyboard alone, also at the width of a phone', async () => {
    const { page, leave } = await visit('/account');
    await page.setViewportSize({ width: 390, height: 800 });
    const time = page.getByRole('row').filter({ hasText: 'this one' }).locator('.time').first();
    await time.filter({ hasText: /just now|ago/ }).waitFor();
    await press(page, time);
    await time.filter({ hasText: /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$/ }).waitFor();
    assert.equal(await overhangPx(page), 0);
    await page.keyboard.press('Space');
    await time.filter({ hasText: /just now|ago/ }).waitFor();
    await leave();
  });

  test('tells why a button cannot be used, to the eye and to a screen reader', async () => {
    const owner = await api.person();
    const { name } = await api.instance(owner);
    const { page, button, leave } = await visit('/', { org_id: owner.org_id, role: 'billing' });
    const create = button('New instance').first();
    await page.getByText('Your role here, billing, cannot change instances.').first().waitFor();
    await tabTo(page, create);
    const reason = await create.getAttribute('aria-describedby');
    assert.match(await page.locator(`[id="${reason}"]`).innerText(), /cannot change instances/);
    await page.keyboard.press('Enter');
    assert.equal(await page.getByRole('dialog').count(), 0);
    await page.goto(`/instances/${name}`);
    await page.getByText('cannot change instances').first().waitFor();
    await leave();
  });

  test('shows a long list in parts', async () => {
    const { who, page, leave } = await visit();
    for (let made = 0; made < 52; made++) await api.instance(who);
    await page.goto('/');
    const more = page.getByRole('button', { name: /^Show (\d+ )?more/ });
    await more.waitFor();
    assert.equal(await page.locator('tbody tr').count(), 50);
    await more.click();
    await until('all are shown', async () => (await page.locator('tbody tr').count()) === 52);
    assert.equal(await more.count(), 0);
    await leave();
  });

  test('is usable by everybody before a login: axe, both themes, a phone', async () => {
    const window = await browser.newContext();
    const page = await window.newPage();
    const origin = api.origin.replace('127.0.0.1', 'localhost');
    const found: string[] = [];
    for (const path of [
      '/login',
      '/register',
      '/invitation#token=secret',
      '/password-reset',
      '/password-reset#token=secret',
    ])
      found.push(...(await pageFindings(page, origin, path)));
    assert.deepEqual(found, []);
    await window.close();
  });

  test('fits a phone with the longest names, and its dialogs have all their parts', async () => {
    const { who, page, button, dialog, leave } = await visit();
    const name = `${'a-long-name-'.repeat(4)}${'x'.repeat(15)}`;
    const { id } = await api.instance(who, { name, labels: { environment: 'y'.repeat(60) } });
    await page.setViewportSize({ width: 390, height: 800 });
    const wide: string[] = [];
    const tabs = [
      '',
      '/generations',
      '/ports',
      '/terminal',
      '/keys',
      '/egress',
      '/secrets',
      '/activity',
      '/settings',
    ];
    for (const path of [
      '/',
      ...tabs.map((tab) => `/instances/${name}${tab}`),
      '/usage',
      '/audit',
      '/operator',
    ]) {
      await page.goto(path);
      await page.locator('h1').waitFor();
      await page.locator('[aria-busy="true"]').first().waitFor({ state: 'detached' });
      if ((await overhangPx(page)) > 0) wide.push(path);
    }
    assert.deepEqual(wide, []);
    await page.goto(`/instances/${name}/settings`);
    await button(`Delete ${name}`).click();
    await dialog().waitFor();
    assert.equal(await overhangPx(page), 0);

    await api.as(who).post(`/v1/instances/${id}/vm`);
    await api.agent.assigned(id);
    await api.agent.ready(id);
    await api.as(who).delete(`/v1/instances/${id}/vm`);
    await page.goto(`/instances/${name}`);
    await button('Force stop').click();
    // The rules for the buttons behind it are not its own.
    await dialog().getByRole('button', { name: 'Close' }).locator('svg').waitFor();
    assert.equal(await overhangPx(page), 0);
    await leave();
  });

  test('is usable by everybody on the pages of a new account', async () => {
    const { page, leave } = await visit('/', { email_confirmed: false });
    const origin = api.origin.replace('127.0.0.1', 'localhost');
    const found: string[] = [];
    for (const path of [
      '/',
      '/ssh-keys',
      '/api-keys',
      '/webhooks',
      '/notifications',
      '/email',
      '/invitation',
      '/instances/nowhere',
    ])
      found.push(...(await pageFindings(page, origin, path)));
    assert.deepEqual(found, []);
    await leave();
  });

  test('was refused nothing by its policy and asked no other host, on any page', () => browser.assertQuiet());
});
