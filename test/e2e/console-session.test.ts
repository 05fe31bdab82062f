/** The console when a session, an organisation or the server has changed. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { NO_BROWSER } from '../support/browser.ts';
import { type ConsoleForFile, consoleForFile, PASSWORD } from '../support/console-visit.ts';
import { dialogFindings } from '../support/dialogs.ts';
import { raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeKey, makeNotification, type Person } from '../support/people.ts';

const HOUR_MS = 3_600_000;

describe('the console', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { api, visit }: ConsoleForFile = await consoleForFile();

  /** As after an hour: the browser's session is left, and its refresh cookie. */
  const endTokens = ({ user_id, session_id }: Person) =>
    api.db
      .deleteFrom('session_tokens')
      .where('session_id', 'in', (query) =>
        query.selectFrom('sessions').select('id').where('user_id', '=', user_id),
      )
      .where('session_id', '!=', session_id)
      .execute();

  test('shows another organisation when the user has left the chosen one', async () => {
    const { page, heading, leave } = await visit();
    await heading('No instances yet').waitFor();
    await page.evaluate("localStorage.setItem('berth.org', 'org_00000000000000000000000000')");
    await page.reload();
    await heading('No instances yet').waitFor();
    await leave();
  });

  test('changes the role of a second person and removes them; the only owner learns why they stay', async () => {
    const { who, page, button, dialog, place, leave } = await visit();
    const other = await api.person({ org_id: who.org_id, role: 'member' });
    await place('Organisation').click();
    const own = page.getByRole('row').filter({ hasText: who.email });
    await own.getByText('make another member owner before you leave or change this role').waitFor();
    assert.ok(await own.getByRole('combobox').isDisabled());
    assert.equal(await own.getByRole('button', { name: 'Leave Org' }).getAttribute('aria-disabled'), 'true');
    const role = page.getByRole('combobox', { name: `Role of ${other.email}` });
    await role.selectOption('owner');
    await own.getByText('make another member owner').waitFor({ state: 'detached' });
    assert.ok(await own.getByRole('combobox').isEnabled());
    await role.selectOption('billing');
    await own.getByText('make another member owner').waitFor();
    const remove = button(`Remove ${other.email}`);
    await remove.click();
    await dialog().getByText('stop working at once').waitFor();
    assert.deepEqual(await dialogFindings(page, remove), []);
    await remove.click();
    await dialog().getByRole('button', { name: 'Remove' }).click();
    await page.getByRole('row').filter({ hasText: other.email }).waitFor({ state: 'detached' });
    const reason = own.getByText('can leave once all instances are deleted');
    const text = await reason.textContent();
    await own.getByRole('button', { name: 'Leave Org' }).click();
    await dialog().getByText('the organisation is deleted').waitFor();
    await dialog().getByRole('button', { name: 'Cancel' }).click();
    // The first instance changes what is possible, and no text: what is below it stays in its place.
    await api.instance(who);
    await own.locator('button[aria-disabled="true"]', { hasText: 'Leave' }).waitFor();
    assert.equal(await own.locator('.hint').textContent(), text);
    await leave();
  });

  test('tells an admin that only owners change owners', async () => {
    const { who, page, place, leave } = await visit();
    const owner = await api.person({ org_id: who.org_id });
    await api.db
      .updateTable('memberships')
      .set({ role: 'admin' })
      .where('user_id', '=', who.user_id)
      .execute();
    await page.reload();
    await place('Organisation').click();
    const row = page.getByRole('row').filter({ hasText: owner.email });
    await row.getByText('Only owners can change or remove an owner.').waitFor();
    assert.ok(await row.getByRole('combobox').isDisabled());
    await leave();
  });

  test('stays logged in where logging out fails, and says so', async () => {
    const { page, button, heading, leave } = await visit();
    await page.route('**/v1/auth/logout', (route) => route.abort());
    await button('Log out').click();
    await page.locator('.toast.bad').waitFor();
    assert.equal(await heading('Log in').count(), 0);
    await page.unroute('**/v1/auth/logout');
    await button('Log out').click();
    await heading('Log in').waitFor();
    await leave();
  });

  test('shows the next user nothing that was told before a logout', async () => {
    const { page, button, heading, leave } = await visit('/account');
    await page.getByLabel('Name', { exact: true }).fill('Grace');
    await button('Save').click();
    await page.getByText('Saved.').waitFor();
    await button('Log out').first().click();
    await heading('Log in').waitFor();
    assert.equal(await page.getByText('Saved.').count(), 0);
    await leave();
  });

  test('ends the session at a logout also where its token has expired', async () => {
    const { who, page, button, heading, listenAt, leave } = await visit();
    await listenAt('/');
    await endTokens(who);
    await button('Log out').click();
    await heading('Log in').waitFor();
    await page.reload();
    await heading('Log in').waitFor();
    await leave();
  });

  test('asks for a login where the session is revoked while it begins', async () => {
    const { who, page, heading, leave } = await visit();
    await page.route(/\/v1\/me$/, async (route) => {
      await endTokens(who);
      await route.continue();
    });
    await page.reload();
    await heading('Log in').waitFor();
    await page.getByText('Your session has ended').waitFor();
    await leave();
  });

  test('offers a retry when its start fails', async () => {
    const { page, button, heading, leave } = await visit();
    const error = { code: 'RATE_LIMITED', message: 'Too many.', request_id: 'req_1' };
    await page.route(/\/v1\/orgs(\?|$)/, (route) =>
      route.fulfill({ status: 429, headers: { 'retry-after': '60' }, json: { error } }),
    );
    await page.reload();
    await heading('This could not be loaded').waitFor();
    await page.unrouteAll();
    await button('Try again').click();
    await heading('No instances yet').waitFor();
    await leave();
  });

  test('counts unread notifications in a second tab, too', async () => {
    const { who, page, place, leave } = await visit();
    for (const _ of [1, 2]) await makeNotification(api.db, who.user_id);
    await page.reload();
    await place('Notifications').filter({ hasText: '2' }).waitFor();
    const other = await page.context().newPage();
    await other.goto('/notifications');
    await other.locator('#side .count').filter({ hasText: '2' }).waitFor();
    await other.getByRole('button', { name: 'Mark all as read', disabled: false }).click();
    await other.locator('#side .count').waitFor({ state: 'detached' });
    await leave();
  });

  test('logs out all other sessions, and stays logged in itself', async () => {
    const { who, page, button, dialog, leave } = await visit('/account');
    const user_agent = 'Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0';
    const body = { email: who.email, password: PASSWORD };
    await api.client.post('/v1/auth/login', body, { headers: { 'user-agent': user_agent } });
    await page.reload();
    await page.getByRole('cell', { name: 'Firefox on Linux', exact: true }).waitFor();
    await button('Log out all other sessions').click();
    await dialog().getByRole('button', { name: 'Log out', exact: true }).click();
    await page.getByText(/^Logged out \d sessions?\.$/).waitFor();
    await page.getByRole('cell', { name: 'Firefox on Linux', exact: true }).waitFor({ state: 'detached' });
    await button('Log out').first().waitFor();
    await leave();
  });

  test('says at the login what a confirmation link is for, and takes its token also where the page is open', async () => {
    const { page, button, heading, logIn, leave } = await visit();
    await button('Log out').click();
    await heading('Log in').waitFor();
    await page.goto('/email#token=berth_mail_first');
    await page.getByText('Log in to confirm your address.').waitFor();
    await logIn();
    const token = page.getByLabel('Link or token of the mail');
    await token.and(page.locator('[value="berth_mail_first"]')).waitFor();
    // As when the link of a second mail is pasted into the address bar.
    await page.evaluate("location.hash = '#token=berth_mail_second'");
    await token.and(page.locator('[value="berth_mail_second"]')).waitFor();
    await leave();
  });

  test('remembers an invitation through the login', async () => {
    const { page, button, heading, logIn, leave } = await visit();
    await button('Log out').click();
    await heading('Log in').waitFor();
    await page.goto('/invitation#token=secret');
    await heading('You are invited').waitFor();
    await page.getByRole('link', { name: 'Log in instead' }).click();
    await logIn();
    await heading('Invitation').waitFor();
    assert.equal(await page.getByLabel('Link or token of the mail').inputValue(), 'secret');
    await leave();
  });

  test('renews its token once, however far its clock is ahead', async () => {
    const { page, place, heading, leave } = await visit();
    const { href } = new URL('/', page.url());
    // What the page asks before has another clock.
    await page.goto('about:blank');
    let renewals = 0;
    page.on('request', (request) => {
      if (request.url().endsWith('/v1/auth/refresh')) renewals += 1;
    });
    await page.clock.setFixedTime(Date.now() + 2 * HOUR_MS);
    await page.goto(href);
    for (const name of ['SSH keys', 'Webhooks', 'API keys']) {
      await place(name).click();
      await heading(name).waitFor();
    }
    await heading('No API keys yet').waitFor();
    assert.equal(renewals, 1);
    await leave();
  });

  test('works in two tabs that renew at the same time, and after a reload of both', async () => {
    const { who, page, heading, leave } = await visit();
    await heading('No instances yet').waitFor();
    const other = await page.context().newPage();
    await other.goto('/');
    await other.getByRole('heading', { name: 'No instances yet' }).waitFor();
    for (let times = 0; times < 2; times++) {
      await endTokens(who);
      await Promise.all([page.reload(), other.reload()]);
      for (const each of [page, other]) {
        await each.getByRole('heading', { name: 'No instances yet' }).waitFor();
        assert.equal(await each.getByRole('heading', { name: 'Log in' }).count(), 0);
      }
    }
    await leave();
  });

  test('uses a token that cannot be renewed just now as long as it lasts', async () => {
    const { page, place, heading, leave } = await visit();
    await heading('No instances yet').waitFor();
    await page.route('**/v1/auth/refresh', (route) => route.abort());
    await page.clock.setFixedTime(Date.now() + HOUR_MS - 60_000);
    await place('SSH keys').click();
    await heading('No SSH keys yet').waitFor();
    await leave();
  });

  test('asks for no password after the session has ended', async () => {
    const { who, page, button, heading, dialog, leave } = await visit('/api-keys');
    await makeKey(api.db, who, '*');
    await page.reload();
    await button('Rotate test').click();
    await dialog().getByRole('button', { name: 'Rotate', exact: true }).click();
    await heading('Confirm it is you').waitFor();
    const other = await page.context().newPage();
    await other.goto('/');
    await other.getByRole('button', { name: 'Log out' }).click();
    await heading('Log in').waitFor();
    assert.equal(await dialog().count(), 0);
    await leave();
  });

  test('shows what happened when a token ended, once its streams go on', async () => {
    const { who, page, heading, listenAt, leave } = await visit();
    const { id, name } = await api.instance(who);
    await listenAt(`/instances/${name}/activity`);
    await heading('No events yet').waitFor();
    await endTokens(who);
    await api.as(who).post(`/v1/instances/${id}/vm`);
    await raiseNotificationsOfEvents(api.db);
    await page.getByRole('cell', { name: 'instance.created' }).waitFor();
    await leave();
  });
});
