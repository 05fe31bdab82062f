/**
 * The web console in a browser, on a whole installation with a VM, in the order of a person's actions. Each test continues on
 * the page where the previous one ended.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import type { Locator, Page } from 'playwright-core';
import {
  accessibilityFindings,
  addAuthenticator,
  NO_BROWSER,
  startBrowser,
  type WatchedBrowser,
} from '../support/browser.ts';
import { comesUp } from '../support/console-boot.ts';
import { dialogOpeners, PAGES } from '../support/console-paths.ts';
import { dialogFindings } from '../support/dialogs.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { press, tabTo } from '../support/keyboard.ts';
import { pageFindings } from '../support/page-findings.ts';
import { type Receiver, startReceiver } from '../support/receivers.ts';
import type { InstanceBody, SshBody } from '../support/rest-client.ts';
import { totpCode } from '../support/totp-code.ts';
import { until } from '../support/waiting.ts';

const EMAIL = 'admin@localhost';
const PASSWORD = 'harbour lantern seven';
const STEP_S = 30;

describe('the console', { skip: CANNOT_BOOT_GUESTS || NO_BROWSER, timeout: 1_200_000 }, () => {
  let berth: Installation;
  let browser: WatchedBrowser;
  let receiver: Receiver;
  let page: Page;
  let origin: string;
  /** The `webhook-id`s that came. */
  const received: string[] = [];

  const button = (name: string) => page.getByRole('button', { name, exact: true });
  const heading = (name: string) => page.getByRole('heading', { name, exact: true });
  const tab = (name: string) => page.getByLabel('Parts of this instance').getByRole('link', { name });
  const place = (name: string) =>
    page.getByRole('navigation', { name: 'Console' }).getByRole('link', { name });
  const dialog = () => page.getByRole('dialog');
  const state = (name: string) => page.locator(`main [data-state="${name}"]`).first();
  const instance = () =>
    berth.client
      .expect<{ data: InstanceBody[] }>(200, 'GET', '/v1/instances?name=web')
      .then(({ data }) => data[0] as InstanceBody);
  const use = (target: Locator) => press(page, target);
  const type = async (label: string, text: string) => {
    await tabTo(page, dialog().getByLabel(label));
    await page.keyboard.type(text);
  };
  /** For docs/images, when asked for. */
  const picture = async (name: string, colorScheme: 'light' | 'dark' = 'light') => {
    const folder = process.env['BERTH_TEST_PICTURES'];
    if (folder === undefined) return;
    await page.emulateMedia({ colorScheme });
    await page.screenshot({ path: join(folder, `console-${name}.png`) });
    await page.emulateMedia({ colorScheme: 'light' });
  };
  const logIn = async () => {
    await page.getByLabel('E-mail').fill(EMAIL);
    await page.getByLabel('Password', { exact: true }).fill(PASSWORD);
    await button('Log in').click();
  };
  const confirmPassword = async () => {
    await heading('Confirm it is you').waitFor();
    const asked = dialog().filter({ hasText: 'Confirm it is you' });
    await asked.getByLabel('Password').fill(PASSWORD);
    await asked.getByRole('button', { name: 'Continue' }).click();
  };
  const logOut = async () => {
    await button('Log out').first().click();
    await heading('Log in').waitFor();
  };

  before(async () => {
    await import('../../console/build.ts');
    berth = await Installation.start({
      settings: { BERTH_ADMIN_PASSWORD: PASSWORD, BERTH_WEBHOOK_ALLOW_CIDRS: '127.0.0.0/8' },
    });
    receiver = await startReceiver((request, response) => {
      received.push(String(request.headers['webhook-id']));
      response.end('taken');
    });
    // Passkeys belong to a host name; at an address of this machine it is this one.
    origin = berth.origin.replace('127.0.0.1', 'localhost');
    browser = await startBrowser(origin);
    page = await (await browser.newContext()).newPage();
    await page.goto(origin);
  });
  after(async () => {
    await browser?.close();
    await receiver?.close();
    await berth?.dispose();
  });

  test('shows nothing before the login, and says that a password is wrong', async () => {
    await heading('Log in').waitFor();
    // By the keyboard alone, from where the cursor is.
    await page.keyboard.type(EMAIL);
    await page.keyboard.press('Tab');
    await page.keyboard.type('not this one\n');
    await page.getByRole('alert').filter({ hasText: /\S/ }).waitFor();
    assert.deepEqual(await accessibilityFindings(page), []);
    await logIn();
    await heading('No instances yet').waitFor();
  });

  test('keeps no token where a script of somebody else could read it, and goes on after a reload', async () => {
    await page.reload();
    await heading('No instances yet').waitFor();
    const kept = await page.evaluate(
      'JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, document.documentElement.outerHTML])',
    );
    assert.doesNotMatch(kept as string, /berth_sess_|berth_refresh/);
    const [cookie] = (await page.context().cookies()).filter(({ name }) => name === '__Host-berth_refresh');
    assert.deepEqual([cookie?.httpOnly, cookie?.secure, cookie?.sameSite], [true, true, 'Strict']);
  });

  test('creates an instance in one dialog by the keyboard alone, and shows its VM start with the ssh command', async (t) => {
    await use(button('New instance').first());
    await dialog().waitFor();
    await page.keyboard.type('web');
    await type('Memory, MiB', '256');
    await type('Disk, GiB', '2');
    await use(dialog().locator('summary').first());
    await tabTo(page, dialog().getByLabel('Automatic flush every'));
    await page.keyboard.press('Delete');
    await picture('create');
    await type('Labels', 'team=console');
    await page.keyboard.press('Enter');
    await heading('web').waitFor();
    await state('starting').waitFor();
    await comesUp(page, t);
    const { id } = await instance();
    const ssh = await berth.client.expect<SshBody>(200, 'GET', `/v1/instances/${id}/ssh`);
    await page.getByText(`ssh -p ${ssh.port} root@${ssh.host}`).waitFor();
    await page.locator('.chart-line').first().waitFor();
    await picture('instance');
  });

  test('has the serial console as a terminal, and lets the keyboard out of it', async () => {
    await use(tab('Terminal'));
    await use(button('Connect'));
    await button('Disconnect').waitFor();
    const screen = page.locator('.xterm-rows');
    await screen.filter({ hasText: /[#$]/ }).waitFor();
    await page.keyboard.type('echo "$((6 * 7)) knots"; echo kept > /root/kept; sync\n');
    await screen.filter({ hasText: '42 knots' }).waitFor();
    await picture('terminal');
    await page.keyboard.press('Control+Shift+Escape');
    await use(button('Disconnect'));
    await button('Connect').waitFor();
    assert.equal(await page.getByRole('alert').filter({ hasText: /\S/ }).count(), 0);
  });

  test('flushes, and shows the receipt', async () => {
    const before = (await instance()).disk.generation;
    await use(button('Flush'));
    const receipt = page.getByRole('status', { name: 'Flush receipt' });
    await receipt.waitFor();
    const text = await receipt.innerText();
    const { generation } = (await instance()).disk;
    assert.ok(generation > before);
    assert.ok(text.includes(`Saved as generation ${generation}`), text);
    assert.match(text, /Uploaded, compressed\s+[\d.]+ \w+/);
    await button('Close the receipt').click();
  });

  test("shows this tab's changes in another tab", async () => {
    const other = await page.context().newPage();
    await other.goto(origin);
    await other.locator('main [data-state="running"]').waitFor();
    await button('Stop').click();
    await other.locator('main [data-state="stopped"]').waitFor();
    await state('stopped').waitFor();
    await other.close();
  });

  test('names actors', async () => {
    await page.goto(`${origin}/instances/web/activity`);
    await page.getByText(`${EMAIL} started web`).first().waitFor();
    await page.getByText(`${EMAIL} flushed web`).first().waitFor();
  });

  test('invites several people as members, not as owners', async () => {
    await place('Organisation').click();
    for (const email of ['ada@example.org', 'bob@example.org']) {
      await page.getByLabel('E-mail').fill(email);
      await button('Invite').click();
      await button('I have kept it').click();
      await page.getByRole('row').filter({ hasText: email }).filter({ hasText: 'member' }).waitFor();
    }
    await page.goto(`${origin}/instances/web`);
  });

  test('lists generations as a line through time; pins, restores, forks, starts and deletes by the keyboard alone', async () => {
    await use(tab('Generations'));
    const head = (await instance()).disk.generation;
    await use(button('Pin generation 1'));
    await page.locator('.timeline li').filter({ hasText: 'pinned' }).waitFor();
    await use(button('Restore generation 1'));
    await use(dialog().getByRole('button', { name: 'Restore', exact: true }));
    await page
      .locator('.timeline li.head')
      .filter({ hasText: String(head + 1) })
      .waitFor();
    await dialog().waitFor({ state: 'hidden' });
    await picture('generations');
    await use(button(`Fork generation ${head}`));
    await dialog().waitFor();
    await page.keyboard.type('web-2\n');
    await heading('web-2').waitFor();
    await state('stopped').waitFor();
    await use(button('Start'));
    await state('starting').waitFor();
    await use(tab('Settings'));
    await use(button('Delete web-2'));
    await dialog().waitFor();
    // Nothing is deleted for a wrong word; the field says so.
    await page.keyboard.type('web\n');
    await dialog().getByText('Type exactly web-2.').waitFor();
    await page.keyboard.type('-2\n');
    await heading('Instances').waitFor();
    await page.locator('tr').filter({ hasText: 'web-2' }).waitFor({ state: 'detached' });
    await page.getByRole('link', { name: 'web', exact: true }).click();
  });

  test('replaces the key set, and goes back to the account’s keys', async () => {
    await tab('Keys').click();
    await page.getByLabel('Only the keys chosen here').check();
    await button('Replace the key set').click();
    await page.getByText('Nobody can log in').waitFor();
    await page.getByLabel(/All keys of its creator/).check();
    await button('Replace the key set').click();
    await page.getByRole('cell', { name: 'admin-key' }).waitFor();
  });

  test('shows an API key once, asks for the password when it is needed, and then goes on by itself', async () => {
    await place('API keys').click();
    const unread = await place('Notifications').innerText();
    await button('New API key').first().click();
    await dialog().getByLabel('Name').fill('deploys');
    await button('Create the key').click();
    const first = await dialog().locator('.copyable code').innerText();
    assert.match(first, /^berth_live_[0-9A-Za-z]{49}$/);
    await button('I have kept it').click();
    await berth.client.expect(201, 'POST', '/v1/service-accounts', { name: 'ci', scope: '*' });
    await page.reload();
    await page.getByRole('cell', { name: 'deploys', exact: true }).waitFor();
    assert.ok(!(await page.content()).includes(first));
    // Told of by its stream.
    await until(
      'a notification of the new key is counted',
      async () => (await place('Notifications').innerText()) !== unread,
    );

    const rotate = async () => {
      await button('Rotate deploys').click();
      await dialog().getByRole('button', { name: 'Rotate', exact: true }).click();
    };
    await rotate();
    await confirmPassword();
    const second = await dialog().locator('.copyable code').innerText();
    assert.notEqual(second, first);
    await button('I have kept it').click();
    // Within its five minutes it is not asked for again.
    await rotate();
    await dialog().locator('.copyable code').waitFor();
    await button('I have kept it').click();
  });

  test('makes a webhook, and shows that its ping was delivered', async () => {
    await place('Webhooks').click();
    await button('New webhook').first().click();
    await dialog().getByLabel('Name').fill('bot');
    await dialog().getByLabel('URL').fill(`${receiver.origin}/hook`);
    await button('Create webhook').click();
    await dialog()
      .getByText(/^whsec_/)
      .waitFor();
    await button('I have kept it').click();
    await page.getByRole('link', { name: 'bot' }).click();
    await button('Send a ping').click();
    await page
      .getByRole('row')
      .filter({ hasText: 'webhook.ping' })
      .filter({ hasText: 'delivered' })
      .waitFor();
    assert.equal(received.length, 1);
  });

  test('has a second factor by an authenticator app, and its recovery codes', async () => {
    await place('Account').click();
    await page.context().clearCookies({ name: '__Secure-berth_sudo' });
    await button('Add an app').click();
    await button('Next').click();
    await confirmPassword();
    await page.getByRole('img', { name: /QR code/ }).waitFor();
    await dialog().getByText('Type the secret instead').click();
    const secret = await dialog().locator('.copyable code').innerText();
    const now_s = Date.now() / 1000;
    await dialog().getByLabel('Code', { exact: true }).fill(totpCode(secret, now_s));
    await button('Confirm').click();
    await heading('Recovery codes').waitFor();
    const codes = (await dialog().locator('.copyable code').innerText()).split('\n');
    await button('I have kept it').click();

    await logOut();
    await logIn();
    await heading('Second factor').waitFor();
    assert.deepEqual(await accessibilityFindings(page), []);
    // A step later than the code before, or more: each is good once, and from a step before its own until a step after it.
    await page.getByLabel(/Code of your/).fill(totpCode(secret, Math.max(now_s + STEP_S, Date.now() / 1000)));
    await button('Log in').click();
    await heading('Account').waitFor();

    await logOut();
    await logIn();
    await button('Use a recovery code').click();
    await page.getByLabel('Recovery code').fill(codes[0] ?? '');
    await button('Log in').click();
    await heading('Account').waitFor();
  });

  test('registers a passkey of the browser, and logs in with it alone', async () => {
    await addAuthenticator(page);
    await button('Add a passkey').click();
    await confirmPassword();
    await page.getByRole('cell', { name: 'passkey', exact: true }).waitFor();
    await logOut();
    await button('Log in with a passkey').click();
    await heading('Account').waitFor();
    await page
      .getByRole('row')
      .filter({ hasText: 'passkey of' })
      .filter({ hasText: /just now|\d s ago/ })
      .waitFor();
  });

  test('is usable by everybody: axe, both themes, a phone; nothing moves while a page loads', async () => {
    const found: string[] = [];
    for (const path of PAGES) {
      found.push(...(await pageFindings(page, origin, path)));
      if (path === '/') await picture('instances-dark', 'dark');
    }
    assert.deepEqual(found, []);
  });

  test('is usable by everybody in its dialogs too: axe, the keyboard, a phone; the focus goes back', async () => {
    const head = (await instance()).disk.generation;
    const found: string[] = [];
    for (const [path, openers] of Object.entries(dialogOpeners(head))) {
      await page.goto(`${origin}${path}`);
      for (const name of openers) {
        const opener = button(name).first();
        await opener.click();
        await dialog().waitFor();
        found.push(...(await dialogFindings(page, opener)));
      }
    }
    await page.goto(`${origin}/webhooks`);
    await page.getByRole('link', { name: 'bot' }).click();
    for (const name of ['Edit', 'Rotate secret', 'Delete']) {
      await button(name).click();
      found.push(...(await dialogFindings(page, button(name))));
    }
    // Over another one: the password. Refused, the one below is there again, and nothing has happened.
    await page.goto(`${origin}/api-keys`);
    await button('Rotate deploys').click();
    const confirm = dialog().getByRole('button', { name: 'Rotate', exact: true });
    await confirm.click();
    await heading('Confirm it is you').waitFor();
    found.push(...(await dialogFindings(page, confirm)));
    found.push(...(await dialogFindings(page, button('Rotate deploys'))));
    // What is shown once stays, however often Escape is pressed; its opener was inside a dialog that has gone.
    await button('New API key').first().click();
    await dialog().getByLabel('Name').fill('once');
    await button('Create the key').click();
    await dialog().locator('.copyable code').waitFor();
    for (const _ of [1, 2, 3]) await page.keyboard.press('Escape');
    await dialog().locator('.copyable code').waitFor();
    const keep = () => button('I have kept it').click();
    found.push(...(await dialogFindings(page, button('New API key').first(), keep)));
    assert.deepEqual(found, []);
  });

  test('was refused nothing by its policy and asked no other host, on any page', () => browser.assertQuiet());
});
