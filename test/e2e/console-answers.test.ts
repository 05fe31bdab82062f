/** The console when responses arrive late, are long, or are errors. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { NO_BROWSER } from '../support/browser.ts';
import {
  type ConsoleForFile,
  consoleForFile,
  holdNext,
  PASSWORD,
  type Visit,
} from '../support/console-visit.ts';
import { raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeNotification, makeServiceKey, makeSshKey } from '../support/people.ts';
import { until } from '../support/waiting.ts';

const PASTED = 100_000;
const MOST_MESSAGE = 64 * 1024;

describe('the console', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { api, visit }: ConsoleForFile = await consoleForFile();

  const startedVm = async ({ who }: Visit) => {
    const instance = await api.instance(who);
    await api.as(who).post(`/v1/instances/${instance.id}/vm`);
    await api.agent.assigned(instance.id);
    await api.agent.ready(instance.id);
    return instance;
  };

  test('does not show a state from before an action as the one after it', async () => {
    const { who, page, button, leave } = await visit();
    const { name } = await api.instance(who);
    await page.goto(`/instances/${name}`);
    await button('Start').waitFor();
    await page.evaluate(`globalThis.states = [];
      new MutationObserver(() => states.push(document.querySelector('main [data-state]')?.dataset.state))
        .observe(document.body, { subtree: true, childList: true, attributes: true });`);
    const isList = (url: URL) => url.pathname === '/v1/instances';
    const old = await holdNext(page, isList);
    // As when the page comes to the front again.
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))");
    await old.asked;
    await button('Start').click();
    await page.locator('main [data-state="starting"]').first().waitFor();
    // One look at a time: the next is asked for once the old answer has been taken.
    const next = page.waitForRequest((request) => isList(new URL(request.url())));
    await old.release();
    await next;
    const states = (await page.evaluate('states')) as string[];
    assert.deepEqual([...new Set(states.slice(states.indexOf('starting')))], ['starting']);
    await leave();
  });

  test('pauses between two requests for its instances, however many events arrive', async () => {
    const { page, heading, listenAt, leave } = await visit();
    await page.clock.install();
    await page.addInitScript(`globalThis.looks = { begun: 0, ended: 0 };
      const { fetch } = globalThis;
      globalThis.fetch = async (url, ...rest) => {
        if (new URL(url).pathname !== '/v1/instances') return fetch(url, ...rest);
        looks.begun += 1;
        try {
          const response = await fetch(url, ...rest);
          const text = await response.text();
          return Object.assign(response, { text: async () => text, json: async () => JSON.parse(text) });
        } finally {
          looks.ended += 1;
        }
      };`);
    await listenAt('/');
    await heading('No instances yet').waitFor();
    /** How many there are after so much of the page's time. */
    const looksAfter = async (ms: number) => {
      await page.clock.runFor(ms);
      await until('no look is under way', () => page.evaluate('looks.begun === looks.ended'));
      return Number(await page.evaluate('looks.begun'));
    };
    const ask = () => page.evaluate("document.dispatchEvent(new Event('visibilitychange'))");
    // By less than the silence after which a stream is opened again, which causes looks.
    await page.clock.pauseAt(Date.now() + 15_000);
    // What was under way, and what it was followed by.
    let before = await looksAfter(0);
    await until('a second without a look', async () => {
      const last = before;
      before = await looksAfter(1_000);
      return before === last;
    });
    await ask();
    assert.equal(await looksAfter(60), before + 1);
    await ask();
    assert.equal(await looksAfter(200), before + 1);
    assert.equal(await looksAfter(50), before + 2);
    await leave();
  });

  test('shows the list that was chosen last, whichever response arrives last', async () => {
    const { who, page, button, leave } = await visit();
    await makeNotification(api.db, who.user_id);
    await page.goto('/notifications');
    const entry = page.locator('.notifications li');
    await entry.waitFor();
    const unread = await holdNext(page, (url) => url.searchParams.get('status') === 'unread');
    await button('Only unread').click();
    await unread.asked;
    await button('Show all').click();
    await entry.waitFor();
    await unread.release();
    await page.evaluate('new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))');
    assert.equal(await entry.count(), 1);
    await leave();
  });

  test('keeps the rows of “Show more” when the list is refreshed', async () => {
    const { who, page, button, leave } = await visit();
    await Promise.all(Array.from({ length: 60 }, () => makeNotification(api.db, who.user_id)));
    await page.goto('/notifications');
    const entries = page.locator('.notifications li');
    await entries.first().waitFor();
    assert.ok((await entries.count()) < 60);
    await button('Show more').click();
    await button('Show more').waitFor({ state: 'detached' });
    assert.equal(await entries.count(), 60);
    await entries
      .last()
      .getByRole('button', { name: /^Mark read/ })
      .click();
    await entries.last().getByText('Mark unread').waitFor();
    assert.equal(await entries.count(), 60);
    await leave();
  });

  test('sends no label that nobody touched: a value may hold a comma', async () => {
    const { who, page, button, leave } = await visit();
    const { id, name } = await api.instance(who, { labels: { note: 'a,b=c' } });
    await page.goto(`/instances/${name}/settings`);
    await page.getByLabel('Automatic flush every').fill('2m');
    await button('Save').click();
    await page.getByText('Saved.').waitFor();
    const { body } = await api.as(who).get<Record<string, unknown>>(`/v1/instances/${id}`);
    assert.deepEqual([body['labels'], body['auto_flush_seconds']], [{ note: 'a,b=c' }, 120]);
    // Nor anything else: the audit log tells what was sent as what was changed.
    const log = await api
      .as(who)
      .get<{ data: { data: { change: unknown } }[] }>('/v1/audit?action=instance.change');
    assert.deepEqual(
      log.body.data.map(({ data }) => data.change),
      [{ auto_flush_seconds: 120 }],
    );
    await leave();
  });

  test("shows a key set after another user's change", async () => {
    const { who, page, heading, listenAt, leave } = await visit();
    await makeSshKey(api.db, who.user_id);
    const { id, name } = await api.instance(who);
    await listenAt(`/instances/${name}/keys`);
    await heading('Keys').waitFor();
    const only = page.getByLabel('Only the keys chosen here');
    await only.check();
    await page.getByRole('cell', { name: 'laptop' }).waitFor();
    await api.as(who).put(`/v1/instances/${id}/ssh-keys`, { ssh_key_ids: [] });
    await raiseNotificationsOfEvents(api.db);
    await page.getByText('Nobody can log in').waitFor();
    await leave();
  });

  test('does not preselect a key that another user has removed', async () => {
    const { who, page, button, listenAt, leave } = await visit();
    await makeSshKey(api.db, who.user_id);
    const { id, name } = await api.instance(who);
    await listenAt(`/instances/${name}/keys`);
    const only = page.getByLabel('Only the keys chosen here');
    await only.check();
    const laptop = page.getByRole('checkbox', { name: 'laptop' });
    await laptop.check();
    await button('Replace the key set').click();
    await page.getByText('Replaced the key set.').waitFor();
    assert.deepEqual([await only.isChecked(), await laptop.isChecked()], [true, true]);
    await api.as(who).put(`/v1/instances/${id}/ssh-keys`, { ssh_key_ids: [] });
    await raiseNotificationsOfEvents(api.db);
    await page.getByText('Nobody can log in').waitFor();
    assert.deepEqual([await only.isChecked(), await laptop.isChecked()], [true, false]);
    await leave();
  });

  test('does not say that an account has no keys before they are known', async () => {
    const { who, page, button, alert, leave } = await visit();
    await makeSshKey(api.db, who.user_id);
    const { name } = await api.instance(who);
    const error = { code: 'INTERNAL', message: 'Something broke.', request_id: 'req_1' };
    await page.route('**/v1/me/ssh-keys*', (route) => route.fulfill({ status: 500, json: { error } }));
    await page.goto(`/instances/${name}/keys`);
    await page.getByLabel('Only the keys chosen here').check();
    await alert().filter({ hasText: 'Something broke.' }).waitFor();
    assert.equal(await page.getByText('has no keys').count(), 0);
    await page.unrouteAll();
    await button('Try again').click();
    await page.getByRole('checkbox', { name: 'laptop' }).waitFor();
    await leave();
  });

  test("shows another user's change in saved settings, and does not undo it", async () => {
    const { who, page, button, heading, listenAt, leave } = await visit();
    const { id, name } = await api.instance(who);
    await listenAt(`/instances/${name}/settings`);
    const flush = page.getByLabel('Automatic flush every');
    assert.equal(await flush.inputValue(), '1m');
    await flush.fill('120s');
    await button('Save').click();
    await page.getByText('Saved.').waitFor();
    assert.equal(await flush.inputValue(), '2m');
    await api.as(who).patch(`/v1/instances/${id}`, { auto_flush_seconds: 300, labels: { by: 'another' } });
    await raiseNotificationsOfEvents(api.db);
    await page.locator('main header').getByText('another').waitFor();
    await page.getByLabel('Name').fill(`${name}-2`);
    await button('Save').click();
    await heading(`${name}-2`).waitFor();
    const { body } = await api.as(who).get<Record<string, unknown>>(`/v1/instances/${id}`);
    assert.equal(body['auto_flush_seconds'], 300);
    await leave();
  });

  test('stops a VM while its disk is being flushed', async () => {
    const visited = await visit();
    const { page, button, leave } = visited;
    const { name } = await startedVm(visited);
    await page.goto(`/instances/${name}`);
    await page.route('**/vm/flush', () => undefined);
    await button('Flush').click();
    await button('Stop').click();
    await page.locator('main [data-state="stopping"]').first().waitFor();
    await leave();
  });

  test('sends a long paste to the guest in messages that the server takes', async () => {
    const visited = await visit();
    const { page, button, leave } = visited;
    const { name } = await startedVm(visited);
    const messages: number[] = [];
    await page.routeWebSocket(/console\/stream/, (socket) =>
      socket.onMessage((message) => void messages.push(message.length)),
    );
    await page.goto(`/instances/${name}/terminal`);
    await button('Connect').click();
    await button('Disconnect').waitFor();
    await until('it is connected', () => messages.length > 0);
    await page.evaluate(`const clipboardData = new DataTransfer();
      clipboardData.setData('text/plain', 'x'.repeat(${PASTED}));
      document.activeElement.dispatchEvent(new ClipboardEvent('paste', { clipboardData, bubbles: true }));`);
    const sum = () => messages.reduce((total, each) => total + each, 0);
    await until('all of it was sent', () => sum() >= PASTED);
    assert.ok(Math.max(...messages) <= MOST_MESSAGE, String(messages));
    await leave();
  });

  test("says what to do when the terminal's script of an older server is gone", async () => {
    const visited = await visit();
    const { page, button, alert, leave } = visited;
    const { name } = await startedVm(visited);
    await page.route('**/terminal-screen-*', (route) => route.fulfill({ status: 404 }));
    await page.goto(`/instances/${name}/terminal`);
    await button('Connect').click();
    await alert().filter({ hasText: 'Reload the page' }).waitFor();
    await leave();
  });

  test('shows a wrong code at its field', async () => {
    const { button, heading, dialog, leave } = await visit('/account');
    await button('Add an app').click();
    await button('Next').click();
    await heading('Confirm it is you').waitFor();
    await dialog().getByLabel('Password').fill(PASSWORD);
    await button('Continue').click();
    await dialog().getByLabel('Code', { exact: true }).fill('000000');
    await button('Confirm').click();
    const code = dialog().getByLabel('Code', { exact: true });
    await dialog()
      .getByText(/^Code is wrong/)
      .waitFor();
    assert.equal(await code.getAttribute('aria-invalid'), 'true');
    await leave();
  });

  test('distinguishes service accounts from people, whatever their names', async () => {
    const { who, page, leave } = await visit();
    const { key } = await makeServiceKey(api.db, who.org_id, '*');
    await api.db.updateTable('service_accounts').set({ name: who.email }).execute();
    const { id } = await api.instance(who);
    await api.as(key).patch(`/v1/instances/${id}`, { labels: { a: 'b' } });
    await page.goto('/audit');
    await page.getByRole('cell', { name: `${who.email} (service account)`, exact: true }).waitFor();
    await leave();
  });

  test('keeps a dialog open until its request has a result', async () => {
    const { page, button, dialog, heading, leave } = await visit();
    await button('New instance').first().click();
    await dialog().getByLabel('Name', { exact: true }).fill('web');
    const made = await holdNext(page, (url, method) => method === 'POST' && url.pathname === '/v1/instances');
    await page.keyboard.press('Enter');
    await made.asked;
    for (const _ of [1, 2, 3]) await page.keyboard.press('Escape');
    await dialog().waitFor();
    await made.release();
    await heading('web').waitFor();
    await leave();
  });

  test('unfolds the part of a form that has an error', async () => {
    const { page, button, dialog, leave } = await visit();
    await button('New instance').first().click();
    await dialog().getByLabel('Name', { exact: true }).fill('web');
    const summary = dialog().getByText('Keys, flush, idle stop');
    await summary.click();
    const idle = dialog().getByLabel('Idle stop after');
    await idle.fill('30s');
    await summary.click();
    await button('Create').click();
    await idle.waitFor();
    assert.equal(await page.locator(':focus').getAttribute('name'), 'idle_timeout_seconds');
    await page.getByText('Enter 1m to 30d.').waitFor();
    await idle.fill('soon');
    await button('Create').click();
    await page.getByText('Enter a duration such as 30s, 10m, 24h or 7d.').waitFor();
    await idle.fill('24h');
    await page.getByText('Copy as command line or curl').click();
    await page.getByText('berth create web --idle-timeout 1d --start', { exact: true }).waitFor();
    await leave();
  });

  test('lists a key that was created elsewhere', async () => {
    const { who, page, heading, listenAt, leave } = await visit();
    await listenAt('/api-keys');
    await heading('No API keys yet').waitFor();
    await api.as(who).post('/v1/api-keys', { name: 'elsewhere', scope: 'instances:read' });
    await raiseNotificationsOfEvents(api.db);
    await page.getByRole('cell', { name: 'elsewhere', exact: true }).waitFor();
    await leave();
  });
});
