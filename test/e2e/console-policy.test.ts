/** The console under its content security policy: no text becomes markup or code, and no page needs that. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { NO_BROWSER } from '../support/browser.ts';
import { PAGES } from '../support/console-paths.ts';
import { type ConsoleForFile, consoleForFile } from '../support/console-visit.ts';

const SINKS = [
  "document.body.innerHTML = '<b>text</b>'",
  "document.body.insertAdjacentHTML('beforeend', '<b>text</b>')",
  "document.createElement('iframe').srcdoc = '<b>text</b>'",
  "document.createElement('script').src = '/assets/other.js'",
  "setTimeout('globalThis.ran = true')",
];

describe('the console', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { api, browser, visit }: ConsoleForFile = await consoleForFile();

  test('shows every page, and a terminal, without a refusal of its policy', async () => {
    const { who, page, button, leave } = await visit();
    const { id } = await api.instance(who, { name: 'web' });
    await api.as(who).post(`/v1/instances/${id}/vm`);
    await api.agent.assigned(id);
    await api.agent.ready(id);
    for (const path of PAGES) {
      await page.goto(path);
      await page.locator('main h1').first().waitFor();
    }
    await page.routeWebSocket(/console\/stream/, (socket) => socket.send(Buffer.from('root@web:~# ')));
    await page.goto('/instances/web/terminal');
    await button('Connect').click();
    await page.locator('.xterm-rows').filter({ hasText: 'root@web' }).waitFor();
    browser.assertQuiet();
    await leave();
  });

  for (const sink of SINKS) {
    test(`lets no script do ${sink}`, async () => {
      const { page, leave } = await visit();
      await assert.rejects(page.evaluate(sink), /requires 'Trusted/);
      await leave();
    });
  }

  test('lets no script create a Trusted Types policy', async () => {
    const { page, leave } = await visit();
    await assert.rejects(page.evaluate("trustedTypes.createPolicy('own', {})"), /Policy "own" disallowed/);
    await leave();
  });
});
