/** HTTP ports and egress in the console, also where several people change the same. No guests. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import type { HttpPortId } from '../../src/shared/ids.ts';
import { NO_BROWSER } from '../support/browser.ts';
import { type ConsoleForFile, consoleForFile, holdNext } from '../support/console-visit.ts';
import { dialogFindings } from '../support/dialogs.ts';
import { pageFindings } from '../support/page-findings.ts';
import { awayFromTurnOf } from '../support/waiting.ts';

describe('HTTP ports and egress in the console', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { api, browser, visit }: ConsoleForFile = await consoleForFile();
  after(() => browser.assertQuiet());

  test('a port is published, made public, given a hostname and deleted', async () => {
    const { who, page, dialog, button, leave } = await visit();
    const { id, name } = await api.instance(who, { name: 'web' });
    const path = `/instances/${name}/ports`;
    await page.goto(path);
    await page.getByRole('heading', { name: 'No ports yet' }).waitFor();
    await button('Publish a port').click();
    await dialog().getByLabel('Port in the guest').fill('8080');
    assert.deepEqual(await dialogFindings(page, button('Publish a port')), []);
    await button('Publish a port').click();
    await dialog().getByLabel('Port in the guest').fill('8080');
    await dialog().getByRole('button', { name: 'Publish' }).click();
    const card = page.getByRole('article', { name: 'Port 8080' });
    await card.getByText('private', { exact: true }).waitFor();
    const port = (
      await api.as(who).get<{ data: { url: string; id: string }[] }>(`/v1${path.replace(name, id)}`)
    ).body.data[0];
    await card.getByText(port?.url ?? 'missing').waitFor();
    await card.getByRole('button', { name: 'Make public' }).click();
    await dialog().getByText('Anybody who knows the URL').waitFor();
    await dialog().getByRole('button', { name: 'Make public' }).click();
    await card.getByText('public', { exact: true }).waitFor();
    assert.equal(await card.getByRole('link', { name: /Open port/ }).getAttribute('href'), port?.url);
    await card.getByRole('button', { name: 'Add a hostname' }).click();
    await dialog().getByLabel('Hostname').fill('10.0.0.1');
    await dialog().getByRole('button', { name: 'Add' }).click();
    await dialog()
      .getByText(/must be a name, not an IP address/i)
      .waitFor();
    await dialog().getByLabel('Hostname').fill('app.example.com');
    await dialog().getByRole('button', { name: 'Add' }).click();
    await card.getByText('_berth.app.example.com').waitFor();
    await card.getByText(/^berth-port=[0-9a-f]{40}$/).waitFor();
    assert.deepEqual(await pageFindings(page, new URL(page.url()).origin, path), []);
    await card.getByRole('button', { name: 'Remove app.example.com' }).click();
    await dialog().getByRole('button', { name: 'Remove' }).click();
    await card.getByText('app.example.com', { exact: true }).waitFor({ state: 'detached' });
    await card.getByRole('button', { name: 'Delete port 8080' }).click();
    await dialog().getByText('never assigned again').waitFor();
    await dialog().getByRole('button', { name: 'Delete' }).click();
    await page.getByRole('heading', { name: 'No ports yet' }).waitFor();
    await leave();
  });

  test('an egress policy is kept as it was chosen, and a denied destination is allowed beside what others allow', async () => {
    const { who, page, button, listenAt, leave } = await visit();
    const { id, name } = await api.instance(who);
    const path = `/instances/${name}/egress`;
    const allowed = async () =>
      (await api.as(who).get<{ egress: object }>(`/v1/instances/${id}`)).body.egress;
    await api.as(who).post(`/v1/instances/${id}/vm`);
    await api.agent.assigned(id);
    const denial = { instance_id: id, at: new Date().toISOString(), count: 1 };
    await api.agent.client.reportDenied({
      denials: [{ ...denial, name: 'api.example.net', address: null, port: null }],
    });
    await listenAt(path);
    const mode = page.getByLabel('What the VM may reach');
    const hosts = page.getByLabel('Allowed hosts');
    await mode.selectOption('allow');
    await hosts.fill('not a host!');
    await button('Save').click();
    await page.locator('.field.wrong').filter({ hasText: 'Allowed hosts' }).waitFor();
    await hosts.fill('example.com');
    await button('Save').click();
    await page.getByText('Nothing is changed yet.').waitFor();
    await hosts.fill('example.com\nexample.org');
    await button('Save').click();
    await page.getByText('Nothing is changed yet.').waitFor();
    assert.equal(await mode.inputValue(), 'allow');
    // Another person's entry that this page has not seen yet stays.
    const held = await holdNext(
      page,
      (url, method) => method === 'GET' && url.pathname === `/v1/instances/${id}`,
    );
    await button('Allow api.example.net').click();
    await held.asked;
    const theirs = { egress: { allow: ['example.com', 'theirs.example'] } };
    assert.equal((await api.as(who).patch(`/v1/instances/${id}`, theirs)).status, 200);
    await held.release();
    await page.getByText('in the list').waitFor();
    assert.deepEqual(await allowed(), {
      mode: 'allow',
      allow: ['example.com', 'theirs.example', 'api.example.net'],
    });
    // An entry for all names below one lists it too.
    for (const allow of [['other.example'], ['*.example.net']]) {
      await api.as(who).patch(`/v1/instances/${id}`, { egress: { allow } });
      await page
        .getByText('in the list')
        .waitFor({ state: allow[0] === '*.example.net' ? 'visible' : 'detached' });
    }
    assert.deepEqual(await pageFindings(page, new URL(page.url()).origin, path), []);
    await leave();
  });

  test('an edit replaces nothing that somebody else has changed meanwhile, until its user has read it', async () => {
    const { who, page, button, leave } = await visit();
    const { id, name } = await api.instance(who, { labels: { team: 'web' } });
    const read = async () => (await api.as(who).get<Record<string, unknown>>(`/v1/instances/${id}`)).body;
    await page.goto(`/instances/${name}/settings`);
    await page.getByLabel('Labels').fill('team=mine');
    await api.as(who).patch(`/v1/instances/${id}`, { labels: { team: 'theirs' }, auto_flush_seconds: 300 });
    await button('Save').click();
    await page.getByText(/somebody else has changed the same meanwhile.*team=theirs/).waitFor();
    assert.deepEqual((await read())['labels'], { team: 'theirs' });
    await button('Save').click();
    await page.getByText('Saved.').waitFor();
    const { labels, auto_flush_seconds } = await read();
    assert.deepEqual({ labels, auto_flush_seconds }, { labels: { team: 'mine' }, auto_flush_seconds: 300 });
    await leave();
  });

  test('a change by somebody else, requests a minute and the last error show by themselves', async () => {
    const { who, page, listenAt, leave } = await visit();
    const { id, name } = await api.instance(who);
    await listenAt(`/instances/${name}/ports`);
    const made = await api.as(who).post<{ id: HttpPortId }>(`/v1/instances/${id}/ports`, { port: 3000 });
    const card = page.getByRole('article', { name: 'Port 3000' });
    await card.getByText('No errors').waitFor();
    const last_error = {
      at: new Date().toISOString(),
      code: 'BAD_GATEWAY',
      message: 'Nothing listens at port 3000 in the VM.',
    };
    const used = {
      port_id: made.body.id,
      requests: 7,
      sent_bytes: 1,
      received_bytes: 1,
      last_error,
    };
    const report = { ports: [used], responses: [0, 0, 0, 0, 7] };
    await awayFromTurnOf(60_000, { margin_ms: 15_000 });
    await api.ingress.reportHttp(report, AbortSignal.timeout(5_000));
    await card.getByText('7 requests a minute').waitFor();
    await card.getByText('Last error: Nothing listens at port 3000 in the VM.').waitFor();
    await leave();
  });
});

describe('the way to a private port', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  // The pages of ports are other origins, so this browser is not watched for requests to them.
  const { api, visit }: ConsoleForFile = await consoleForFile();

  test('leads the browser to the hostname with a ticket of its session', async () => {
    const { who, page, leave } = await visit();
    const { id, name } = await api.instance(who);
    const { body } = await api.as(who).post<{ id: string; hostname: string }>(`/v1/instances/${id}/ports`, {
      port: 8080,
    });
    const tab = await page.context().newPage();
    const asked = tab.waitForRequest((request) => new URL(request.url()).hostname === body.hostname);
    // Nothing answers at the hostname here.
    await tab.goto(`/instances/${name}/ports/${body.id}`).catch(() => undefined);
    const url = new URL((await asked).url());
    assert.equal(url.pathname, '/.berth/open');
    const ticket = url.searchParams.get('ticket') ?? '';
    const redeemed = await api.ingress.redeemHttpTicket({ hostname: body.hostname, ticket });
    assert.equal(redeemed.outcome, 'redeemed');
    await tab.close();
    await leave();
  });
});
