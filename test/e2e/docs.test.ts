/** The API reference in a browser. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { Page } from 'playwright-core';
import { accessibilityFindings, NO_BROWSER, overhangPx } from '../support/browser.ts';
import { type ConsoleForFile, consoleForFile } from '../support/console-visit.ts';

const DESK = { width: 1280, height: 800 };
const PHONE = { width: 390, height: 800 };

describe('the API reference', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { api, browser }: ConsoleForFile = await consoleForFile();
  const origin = api.origin.replace('127.0.0.1', 'localhost');
  const open = async (options: Parameters<typeof browser.newContext>[0] = {}): Promise<Page> => {
    const context = await browser.newContext(options);
    const page = await context.newPage();
    await page.goto(`${origin}/docs/api`);
    return page;
  };
  const count = (page: Page) => page.locator('article.entry:visible').count();

  for (const [device, viewport] of Object.entries({ 'a desktop': DESK, 'a phone': PHONE })) {
    test(`has no finding of axe on ${device} in either theme, with everything opened`, async () => {
      const page = await open({ viewport });
      await page.getByLabel('Search').waitFor();
      await page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })");
      assert.ok((await overhangPx(page)) <= 0);
      for (const colorScheme of ['light', 'dark'] as const) {
        await page.emulateMedia({ colorScheme });
        assert.deepEqual(
          await accessibilityFindings(page, { colours_alone: colorScheme === 'dark', every: true }),
          [],
        );
      }
      browser.assertQuiet();
      await page.context().close();
    });
  }

  test('the search shows the operations that have every word, in the text and in the contents', async () => {
    const page = await open();
    const search = page.getByLabel('Search');
    const all = await count(page);
    await search.fill('fork instance');
    await page.getByRole('heading', { name: 'Fork', exact: false }).first().waitFor();
    const some = await count(page);
    assert.ok(some > 0 && some < all, `${some} of ${all}`);
    await page.getByRole('status').getByText(`${some} of ${all}`).waitFor();
    await search.fill('no such word');
    assert.equal(await count(page), 0);
    await page.getByRole('status').getByText('Nothing has every one of these words.').waitFor();
    await search.fill('flush receipt');
    await page.locator('#flushVm').waitFor();
    await search.fill('');
    assert.equal(await count(page), all);
    await page.context().close();
  });

  test('a copy button copies the curl command', async () => {
    const page = await open({ permissions: ['clipboard-read', 'clipboard-write'] });
    await page.locator('#createInstance').getByRole('button', { name: 'Copy the curl command' }).click();
    await page.getByText('Copied').waitFor();
    const copied = String(await page.evaluate('navigator.clipboard.readText()'));
    assert.match(
      copied,
      /^curl -X POST "http:\/\/\S+\/v1\/instances" \\\n {2}-H "Authorization: Bearer \$BERTH_API_KEY"/,
    );
    await page.context().close();
  });

  test('has the theme that was chosen in the console', async () => {
    const context = await browser.newContext({ colorScheme: 'light' });
    await context.addInitScript("localStorage.setItem('berth.theme', 'dark')");
    const page = await context.newPage();
    await page.goto(`${origin}/docs/api`);
    await page.locator('html[data-theme=dark]').waitFor();
    await context.close();
  });

  test('without scripts has every operation and no dead control', async () => {
    const page = await open({ javaScriptEnabled: false });
    assert.ok((await count(page)) > 90);
    assert.equal(await page.locator('button:visible, input:visible').count(), 0);
    await page.context().close();
  });
});
