/** The documentation in a browser that reaches this server only. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import type { Page } from 'playwright-core';
import { accessibilityFindings, NO_BROWSER, overhangPx } from '../support/browser.ts';
import { type ConsoleForFile, consoleForFile } from '../support/console-visit.ts';

const DESK = { width: 1400, height: 900 };
const PHONE = { width: 390, height: 800 };
/** Lists, code, wide tables, an image, headings of each level. */
const SAMPLE = ['', '/tutorial', '/guides', '/cli', '/permissions', '/console', '/architecture', '/adr'];

describe('the documentation', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  await import('../../bin/build-pages.ts');
  const site_dir = join(import.meta.dirname, '..', '..', 'site', 'dist');
  const { api, browser }: ConsoleForFile = await consoleForFile({ site_dir });
  const origin = api.origin.replace('127.0.0.1', 'localhost');
  const open = async (
    path: string,
    options: Parameters<typeof browser.newContext>[0] = {},
  ): Promise<Page> => {
    const context = await browser.newContext({ viewport: DESK, ...options });
    await context.route('**/*', (route) =>
      route.request().url().startsWith(`${origin}/`) ? route.continue() : route.abort(),
    );
    const page = await context.newPage();
    await page.goto(`${origin}/docs${path}`);
    return page;
  };

  for (const [device, viewport] of Object.entries({ 'a desktop': DESK, 'a phone': PHONE })) {
    test(`has no finding of axe on ${device} in either theme, and fits its width`, async () => {
      const page = await open('', { viewport });
      for (const path of SAMPLE) {
        await page.goto(`${origin}/docs${path}`);
        await page.getByRole('search').waitFor();
        assert.ok((await overhangPx(page)) <= 0, path);
        for (const colorScheme of ['light', 'dark'] as const) {
          await page.emulateMedia({ colorScheme });
          const findings = await accessibilityFindings(page, {
            colours_alone: colorScheme === 'dark',
            every: true,
          });
          assert.deepEqual(findings, [], `${path} ${colorScheme}`);
        }
      }
      browser.assertQuiet();
      await page.context().close();
    });
  }

  test('the search finds sections and operations by their words, with the keyboard alone', async () => {
    const page = await open('/tutorial');
    const search = page.getByLabel('Search the documentation');
    await page.getByRole('search').waitFor();
    await page.keyboard.press('/');
    await page.keyboard.type('idle timeout');
    const results = page.getByRole('search').getByRole('link');
    await results.first().waitFor();
    await page.getByText(/^\d+ results$/).waitFor({ state: 'attached' });
    assert.deepEqual(await accessibilityFindings(page, { every: true }), []);
    await page.keyboard.press('Escape');
    assert.equal(await results.filter({ visible: true }).count(), 0);
    await search.fill('unused machine sleep');
    await results.filter({ hasText: 'Let an unused machine sleep' }).waitFor();
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('Enter');
    await page.waitForURL(`${origin}/docs/guides#let-an-unused-machine-sleep`);
    await search.fill('POST fork instance');
    await results.filter({ hasText: 'API reference' }).first().click();
    await page.waitForURL(`${origin}/docs/api#forkInstance`);
    browser.assertQuiet();
    await page.context().close();
  });

  test('the search says when nothing fits', async () => {
    const page = await open('');
    await page.getByLabel('Search the documentation').fill('qqqqzzzz');
    await page.getByRole('search').getByRole('listitem').getByText('Nothing found.').waitFor();
    await page.context().close();
  });

  test('a copy button copies code, and of what a terminal shows only the commands', async () => {
    const page = await open('', { permissions: ['clipboard-read', 'clipboard-write'] });
    await page.getByRole('button', { name: 'Copy this code' }).first().click();
    await page.getByText('Copied').waitFor();
    const copied = String(await page.evaluate('navigator.clipboard.readText()'));
    assert.match(copied, /^berth up web\nberth flush web .*\n/);
    assert.doesNotMatch(copied, /\$/);
    await page.context().close();
  });

  test('on a phone a button opens the list of pages', async () => {
    const page = await open('/cli', { viewport: PHONE });
    const link = page
      .getByRole('navigation', { name: 'Documentation' })
      .getByRole('link', { name: 'Tutorial' });
    assert.equal(await link.count(), 0);
    await page.getByRole('button', { name: 'Pages' }).click();
    assert.deepEqual(await accessibilityFindings(page, { every: true }), []);
    await link.click();
    await page.waitForURL(`${origin}/docs/tutorial`);
    await page.context().close();
  });

  test('has the theme that was chosen in the console', async () => {
    const page = await open('', { colorScheme: 'light' });
    await page.evaluate("localStorage.setItem('berth.theme', 'dark')");
    await page.reload();
    await page.locator('html[data-theme=dark]').waitFor();
    await page.context().close();
  });

  test('without scripts a page has its text and links, and no dead control', async () => {
    const page = await open('/tutorial', { javaScriptEnabled: false });
    await page.getByRole('link', { name: 'Guides by task' }).first().waitFor();
    assert.equal(await page.locator('button:visible, input:visible').count(), 0);
    await page.context().close();
  });
});
