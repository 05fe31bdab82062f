/** The charts of an instance in a browser: axes, values by pointer, finger and keyboard, ranges, gaps, and the table. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { Page } from 'playwright-core';
import { insertSamples } from '../../src/control-plane/vms/metric-store.ts';
import type { Spreads } from '../../src/protocol/host-types.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { accessibilityFindings, NO_BROWSER, overhangPx } from '../support/browser.ts';
import { type ConsoleForFile, consoleForFile, type Visit } from '../support/console-visit.ts';
import { pageFindings } from '../support/page-findings.ts';
import { spreadsOf } from '../support/spreads.ts';
import { awayFromTurnOf, until } from '../support/waiting.ts';

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const PICTURES = process.env['BERTH_TEST_CHART_PICTURES'];

describe('the charts', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { api, browser, visit }: ConsoleForFile = await consoleForFile();
  const origin = api.origin.replace('127.0.0.1', 'localhost');

  /** A VM that ran for a month and stopped; within the last hour it was also stopped for a while. */
  async function stoppedAfterAMonth({ who }: Visit) {
    const { id, name } = await api.instance(who);
    await api.as(who).post(`/v1/instances/${id}/vm`);
    await api.agent.assigned(id);
    await api.agent.ready(id);
    await api.as(who).delete(`/v1/instances/${id}/vm`);
    await api.agent.stopped(id);
    await fill(id);
    return name;
  }

  async function fill(id: InstanceId) {
    const minute_ms = Math.floor(Date.now() / MINUTE_MS) * MINUTE_MS;
    const hour_ms = Math.floor(Date.now() / HOUR_MS) * HOUR_MS;
    const at = (at_ms: number, minutes: number, nth: number) => {
      const wave = (1 + Math.sin(nth / 9)) / 2;
      const around = (value: number) => ({ mean: value, min: value * 0.6, max: value * 1.3 });
      const spreads: Spreads = {
        ...spreadsOf(around(wave * 2e6)),
        cpu: around(0.1 + wave * 0.6),
        memory_used: around(1.2e8 + wave * 4e7),
        memory_host: around(2.5e8),
        network_sent: around(5e5 * wave),
      };
      return { instance_id: id, at_ms, minutes, spreads };
    };
    const minutes = Array.from({ length: 25 * 60 - 10 }, (_, nth) => 10 + nth).filter(
      (nth) => nth < 20 || nth > 30,
    );
    const hours = Array.from({ length: 690 }, (_, nth) => 27 + nth).filter((nth) => nth < 200 || nth > 290);
    await insertSamples(
      api.db,
      60,
      minutes.map((nth) => at(minute_ms - nth * MINUTE_MS, 1, nth)),
    );
    await insertSamples(
      api.db,
      3600,
      hours.map((nth) => at(hour_ms - nth * HOUR_MS, 60, nth)),
    );
  }

  const chart = (page: Page, title: string) =>
    page.locator('.chart').filter({ has: page.getByText(title, { exact: true }) });
  const ticks = async (page: Page, title: string) => chart(page, title).locator('text').allTextContents();
  const picture = async (page: Page, name: string) => {
    if (PICTURES) await page.screenshot({ path: `${PICTURES}/${name}.png`, fullPage: true });
  };

  test('of a stopped VM show its history with axes, gaps and units, in both directions of the network', async () => {
    const visited = await visit();
    const { page, leave } = visited;
    await page.goto(`/instances/${await stoppedAfterAMonth(visited)}`);
    await chart(page, 'CPU').locator('.chart-line').first().waitFor();
    assert.equal(await chart(page, 'CPU').locator('.chart-line').count(), 2, 'a gap between two lines');
    const of_cpu = await ticks(page, 'CPU');
    assert.deepEqual(of_cpu.slice(0, 5), ['0 %', '25 %', '50 %', '75 %', '100 %']);
    const times = of_cpu.slice(5);
    // Midnight is shown as its day.
    assert.ok(times.length >= 2 && times.every((label) => /^(\d\d:\d\d|\d+ \w{3})$/.test(label)), `${times}`);
    for (const title of ['Network received', 'Network sent', 'Disk written'])
      assert.match((await ticks(page, title)).join(' '), /KiB\/s|MiB\/s/, title);
    assert.equal(await page.getByText('Host memory', { exact: true }).count(), 1);
    for (const title of ['CPU', 'Network sent'])
      assert.match(
        await chart(page, title).locator('figcaption').innerText(),
        /stopped since \d\d:\d\d$/,
        title,
      );
    await picture(page, 'hour-light');
    await leave();
  });

  test('show a lone value as a dot', async () => {
    const { who, page, leave } = await visit();
    const { id, name } = await api.instance(who);
    await api.as(who).post(`/v1/instances/${id}/vm`);
    await api.agent.assigned(id);
    const one = { mean: 1, min: 1, max: 1 };
    const spreads = spreadsOf(one);
    const at_ms = Math.floor(Date.now() / MINUTE_MS - 30) * MINUTE_MS;
    await insertSamples(api.db, 60, [{ instance_id: id, at_ms, minutes: 1, spreads }]);
    await page.goto(`/instances/${name}`);
    const dot = await chart(page, 'Network sent').locator('svg circle').boundingBox();
    // Of 5 px; its place is rounded.
    assert.ok(dot && dot.width >= 4.9 && dot.height >= 4.9, JSON.stringify(dot));
    await leave();
  });

  test('tell the values under the pointer and by the keyboard, with their time', async () => {
    const visited = await visit();
    const { page, leave } = visited;
    await page.goto(`/instances/${await stoppedAfterAMonth(visited)}`);
    await chart(page, 'CPU').locator('.chart-line').first().waitFor();
    const plot = page.getByRole('slider', { name: 'CPU' });
    await plot.scrollIntoViewIfNeeded();
    const box = await plot.boundingBox();
    assert.ok(box);
    await page.mouse.move(box.x + box.width * 0.45, box.y + 50);
    for (const title of ['CPU', 'Network sent'])
      assert.match(await chart(page, title).locator('figcaption').innerText(), /\d\d:\d\d .*(%|B\/s) max /);
    await picture(page, 'pointed');
    await page.mouse.move(5, 5);
    await plot.focus();
    const said = () => plot.getAttribute('aria-valuetext');
    const newest = await said();
    await page.keyboard.press('ArrowLeft');
    const before = await said();
    assert.notEqual(before, newest);
    assert.match(before ?? '', /^\d\d:\d\d: \d+ %, at most \d+ %$/);
    await page.keyboard.press('Home');
    assert.equal(await plot.getAttribute('aria-valuenow'), '0');
    await page.keyboard.press('End');
    assert.equal(await said(), newest);
    await leave();
  });

  test('tell the values under a finger, keep them when it lifts, and forget them at a tap elsewhere', async () => {
    const visited = await visit();
    const { page, leave } = visited;
    const name = await stoppedAfterAMonth(visited);
    await page.setViewportSize({ width: 390, height: 800 });
    await page.goto(`/instances/${name}`);
    await chart(page, 'CPU').locator('.chart-line').first().waitFor();
    const plot = page.getByRole('slider', { name: 'CPU' });
    await plot.scrollIntoViewIfNeeded();
    const box = await plot.boundingBox();
    assert.ok(box);
    const session = await page.context().newCDPSession(page);
    const touch = (type: 'touchStart' | 'touchMove' | 'touchEnd', x?: number, y = 50) =>
      session.send('Input.dispatchTouchEvent', {
        type,
        touchPoints: x === undefined ? [] : [{ x: box.x + box.width * x, y: box.y + y }],
      });
    const told = () => chart(page, 'CPU').locator('figcaption').innerText();
    const value = /\d\d:\d\d .*% max /;
    await touch('touchStart', 0.3);
    const at_first = await until('a value', async () => value.test(await told()) && told());
    await touch('touchMove', 0.5);
    const moved = await until('another value', async () => (await told()) !== at_first && told());
    assert.match(moved, value);
    await touch('touchEnd');
    assert.equal(await told(), moved);
    await touch('touchStart', 0.5, -60);
    await touch('touchEnd');
    await chart(page, 'CPU').getByText('stopped since').waitFor();
    await leave();
  });

  test('cover an hour to 30 days, and the same as a table', async () => {
    const visited = await visit();
    const { page, button, leave } = visited;
    await page.goto(`/instances/${await stoppedAfterAMonth(visited)}`);
    for (const [range, step] of [
      ['6 h', '1 min'],
      ['24 h', '5 min'],
      ['7 days', '1 h'],
      ['30 days', '3 h'],
    ] as const) {
      await button(range).click();
      await page.getByText(`the mean of ${step},`).waitFor();
      assert.equal(await button(range).getAttribute('aria-pressed'), 'true');
      await chart(page, 'CPU').locator('.chart-line').first().waitFor();
      await picture(page, range.replace(' ', '-'));
    }
    assert.match((await ticks(page, 'CPU')).join(' '), /\d+ [A-Z][a-z]{2}/, 'dates');
    await page.getByText('Values as a table').click();
    const rows = page.getByRole('region', { name: /^Values/ }).getByRole('row');
    await rows.nth(150).waitFor();
    assert.match(await rows.nth(1).innerText(), /20\d\d.*\d+ % \(\d+ %\)/s);
    await leave();
  });

  test('of all instances show what was used, and a table by instance names the deleted ones', async () => {
    const { who, page, button, heading, leave } = await visit();
    const [{ id, name }, gone] = [await api.instance(who), await api.instance(who)];
    await awayFromTurnOf(HOUR_MS, { margin_ms: MINUTE_MS });
    const now_ms = Math.floor(Date.now() / HOUR_MS) * HOUR_MS;
    const used = (instance_id: InstanceId, days: number, running_seconds: number) => ({
      ...{ instance_id, org_id: who.org_id, hour: new Date(now_ms - days * 24 * HOUR_MS), running_seconds },
      ...{
        cpu_seconds: running_seconds / 10,
        memory_mib_seconds: running_seconds * 512,
        http_bytes: 2 ** 21,
      },
      ...{ stored_byte_seconds: running_seconds * 2 ** 30, flushed_bytes: 3 * 2 ** 20 },
    });
    const month = Array.from({ length: 30 }, (_, nth) => used(id, nth, nth === 0 ? 1800 : 3600));
    await api.db
      .insertInto('usage_hours')
      .values([...month, used(gone.id, 0, 3600), used(gone.id, 300, 7200)])
      .execute();
    await api.db.deleteFrom('instances').where('id', '=', gone.id).execute();
    await page.goto('/usage');
    await chart(page, 'Running time').getByText('1 h 30 min in all').waitFor();
    await chart(page, 'Flushed').getByText('6 MiB in all').waitFor();
    const rows = page.getByRole('row');
    await rows.nth(1).getByText('(deleted)').waitFor();
    assert.match(
      await rows.nth(1).innerText(),
      new RegExp(`^${gone.id} \\(deleted\\)\\s+1 h\\s+6 min\\s+0.50 GiB h`),
    );
    await page.getByRole('slider', { name: 'Running time' }).press('End');
    assert.match(
      await chart(page, 'Running time').locator('figcaption').innerText(),
      /\d\d:00–\d\d:00 1 h 30 min$/,
    );
    await picture(page, 'usage-day');
    await button('12 months').click();
    await chart(page, 'Running time').getByText('32 h 30 min in all').waitFor();
    await page.getByText('Values as a table').click();
    await page
      .getByRole('region', { name: /^Values/ })
      .getByRole('row')
      .nth(31)
      .waitFor();
    await picture(page, 'usage-year');
    assert.deepEqual(await pageFindings(page, origin, '/usage'), []);
    await button('30 days').click();
    await chart(page, 'Running time').getByText('30 h 30 min in all').waitFor();
    await picture(page, 'usage-month-dark');
    await page.getByRole('link', { name, exact: true }).click();
    await heading(name).waitFor();
    await leave();
  });

  test('fit a phone, and neither theme fails a check of accessibility', async () => {
    const visited = await visit();
    const { page, button, leave } = visited;
    await page.setViewportSize({ width: 390, height: 800 });
    await page.goto(`/instances/${await stoppedAfterAMonth(visited)}`);
    await button('24 h').click();
    await page.getByText('the mean of 5 min').waitFor();
    await page.getByText('Values as a table').click();
    await page.getByRole('region', { name: /^Values/ }).waitFor();
    assert.equal(await overhangPx(page), 0);
    for (const colorScheme of ['light', 'dark'] as const) {
      await page.emulateMedia({ colorScheme });
      const colours_alone = colorScheme === 'dark';
      assert.deepEqual(await accessibilityFindings(page, { colours_alone }), [], colorScheme);
      await picture(page, `phone-${colorScheme}`);
    }
    await page.setViewportSize({ width: 1280, height: 800 });
    await picture(page, 'desk-dark');
    await leave();
    browser.assertQuiet();
  });
});
