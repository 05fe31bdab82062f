/** The log of the guest's serial console in a browser: times, search, and what comes while it is followed. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { accessibilityFindings, NO_BROWSER, overhangPx } from '../support/browser.ts';
import { type ConsoleForFile, consoleForFile } from '../support/console-visit.ts';
import { instanceIn } from '../support/states.ts';

const PICTURES = process.env['BERTH_TEST_CHART_PICTURES'];

describe('the console log', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { api, browser, visit }: ConsoleForFile = await consoleForFile();

  const time = (nth: number) => new Date(Date.UTC(2026, 10, 25, 9, 0, nth)).toISOString();
  const boot = (count: number) =>
    `- before the times\n${Array.from({ length: count }, (_, nth) => `${time(nth)} [  ${nth}.0] \u001b[32mOK\u001b[0m unit ${nth} <b>\r\n`).join('')}`;
  const answer = async (text: string) => {
    const { id, call } = await api.agent.nextCall('console_log');
    assert.equal(call.timestamps, true);
    await api.agent.client.answerCall({ id, answer: { result: { text } } });
  };

  test('shows the lines with their times, searches them, and goes on with what comes', async () => {
    const { who, page, button, leave } = await visit();
    const { name } = await instanceIn(api, who, 'running');
    await page.goto(`/instances/${name}/terminal`);
    await answer(boot(60));
    const log = page.getByRole('region', { name: 'Console log' });
    const lines = log.locator('> div');
    await lines.nth(60).waitFor();
    assert.match(await lines.nth(0).innerText(), /^time unknown before the times\s*$/);
    assert.match(
      await lines.nth(60).innerText(),
      /^2026-11-25 \d\d:\d\d:59 \[ {2}59\.0\] OK unit 59 <b>\s*$/,
    );
    assert.ok(await lines.nth(60).isVisible());
    const search = page.getByLabel('Search the log');
    await search.fill('UNIT 5');
    await page.getByText('11 of 61 lines').waitFor();
    assert.equal(await log.locator('mark').count(), 11);
    if (PICTURES) await page.screenshot({ path: `${PICTURES}/log-search.png`, fullPage: true });
    await search.fill('');
    await page.getByLabel('Times').uncheck();
    assert.equal(await log.locator('time').count(), 0);
    await page.getByLabel('Times').check();
    await page.getByLabel('Follow').check();
    await answer(boot(61));
    await lines.nth(61).waitFor();
    await answer(boot(90));
    await lines.nth(90).waitFor();
    const at_end = 'document.querySelector(".log").scrollTop + document.querySelector(".log").clientHeight';
    const left = await page.evaluate(`document.querySelector(".log").scrollHeight - (${at_end})`);
    assert.ok(Number(left) < 2, 'it has scrolled on');
    await page.getByLabel('Follow').uncheck();
    await button('Refresh').waitFor();
    await leave();
  });

  test('fits a phone, and neither theme fails a check of accessibility', async () => {
    const { who, page, leave } = await visit();
    const { name } = await instanceIn(api, who, 'running');
    await page.setViewportSize({ width: 390, height: 800 });
    await page.goto(`/instances/${name}/terminal`);
    await answer(boot(30));
    await page.getByText('31 lines').waitFor();
    await page.getByLabel('Search the log').fill('unit 2');
    assert.equal(await overhangPx(page), 0);
    for (const colorScheme of ['light', 'dark'] as const) {
      await page.emulateMedia({ colorScheme });
      const colours_alone = colorScheme === 'dark';
      assert.deepEqual(await accessibilityFindings(page, { colours_alone }), [], colorScheme);
      if (PICTURES) await page.screenshot({ path: `${PICTURES}/log-${colorScheme}.png`, fullPage: true });
    }
    await leave();
  });

  test('of an instance that never ran says so', async () => {
    const { who, page, leave } = await visit();
    const { name } = await api.instance(who);
    await page.goto(`/instances/${name}/terminal`);
    await page.getByText('The instance has never run.').waitFor();
    await leave();
    browser.assertQuiet();
  });
});
