/** Email addresses in the console: confirmation, a password reset, and invitations without mail. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { accessibilityFindings, NO_BROWSER, overhangPx } from '../support/browser.ts';
import { consoleForFile, type Visit } from '../support/console-visit.ts';
import { dialogFindings } from '../support/dialogs.ts';
import { makeKey } from '../support/people.ts';
import { until } from '../support/waiting.ts';

const PASSWORD = 'harbour lantern seven';

/** Nothing serious for axe, and no wider than a phone. */
async function assertFits({ page }: Visit): Promise<void> {
  assert.deepEqual(await accessibilityFindings(page), []);
  await page.setViewportSize({ width: 390, height: 800 });
  assert.equal(await overhangPx(page), 0);
  await page.setViewportSize({ width: 1280, height: 800 });
}

/** For whoever looks, when asked for. */
async function picture({ page }: Visit, name: string): Promise<void> {
  const folder = process.env['BERTH_TEST_PICTURES'];
  if (folder !== undefined) await page.screenshot({ path: join(folder, `addresses-${name}.png`) });
}

describe('the console of a server that sends mail', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { api, visit } = await consoleForFile({ has_smtp: true });
  const lastToken = (email: string) =>
    until(`a token for ${email}`, () => {
      const mail = api.mails.findLast(({ to }) => to === email);
      return /^berth_mail_\w+$/m.exec(mail?.text ?? '')?.[0];
    });

  test('shows an unconfirmed address, and confirms it by the link of a mail, also through a login', async () => {
    const visited = await visit('/api-keys', { email_confirmed: false });
    const { who, page, button, heading, alert, dialog, logIn, leave } = visited;
    await page.getByText(`Your address ${who.email} is not confirmed.`).waitFor();
    await assertFits(visited);
    await picture(visited, 'banner');
    await button('New API key').first().click();
    await dialog().getByLabel('Name').fill('deploys');
    await dialog().getByRole('button', { name: 'Create the key' }).click();
    await alert().filter({ hasText: 'not confirmed' }).waitFor();
    await page.keyboard.press('Escape');
    await page.getByRole('link', { name: 'Confirm it' }).click();
    await heading('Confirm the address').waitFor();
    await page.getByLabel('Your password').fill(PASSWORD);
    await button('Send it again').click();
    await page.getByText('has a new link').waitFor();
    await assertFits(visited);
    await picture(visited, 'confirm');
    await button('Log out').click();
    await heading('Log in').waitFor();
    // As from the mail: a page of its own.
    await page.goto('about:blank');
    await page.goto(
      `${api.origin.replace('127.0.0.1', 'localhost')}/email#token=${await lastToken(who.email)}`,
    );
    await logIn();
    await heading('Confirm the address').waitFor();
    await button('Confirm').click();
    await heading('Account').waitFor();
    assert.equal(await page.getByText('is not confirmed').count(), 0);
    await leave();
  });

  test('resets a password, with all keys and factors', async () => {
    const visited = await visit();
    const { who, page, button, heading, leave } = visited;
    await makeKey(api.db, who, 'vm:read');
    await button('Log out').click();
    await page.getByRole('link', { name: 'Forgotten password' }).click();
    await page.getByLabel('E-mail').fill(who.email);
    await button('Send the mail').click();
    await page.getByLabel('Link or token of the mail').waitFor();
    await page.goto('about:blank');
    await page.goto(
      `${api.origin.replace('127.0.0.1', 'localhost')}/password-reset#token=${await lastToken(who.email)}`,
    );
    await page.getByLabel('New password').fill('another good password');
    await page.getByLabel('Also remove API keys, SSH keys and second factors').check();
    await assertFits(visited);
    await picture(visited, 'reset');
    await button('Set the password').click();
    await heading('Log in').waitFor();
    const keys = await api.db
      .selectFrom('api_keys')
      .select('id')
      .where('user_id', '=', who.user_id)
      .execute();
    assert.deepEqual(keys, []);
    await leave();
  });
});

describe('the console of a server that sends no mail', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { visit } = await consoleForFile();

  test('shows the link of an invitation, once, for the inviter to pass on', async () => {
    const visited = await visit('/organisation');
    const { page, button, dialog, leave } = visited;
    await page.getByLabel('E-mail').last().fill('ada@example.org');
    await button('Invite').click();
    await dialog()
      .getByText(/\/invitation#token=berth_mail_/)
      .waitFor();
    await dialog().getByText('This link opens only on the server itself').waitFor();
    await picture(visited, 'invitation');
    const keep = () => button('I have kept it').click();
    assert.deepEqual(await dialogFindings(page, button('Invite'), keep), []);
    await page.getByRole('row').filter({ hasText: 'ada@example.org' }).waitFor();
    assert.equal(await page.getByText('berth_mail_').count(), 0);
    await button('New link: invitation of ada@example.org').click();
    await dialog().getByRole('button', { name: 'New link' }).click();
    await dialog()
      .getByText(/\/invitation#token=berth_mail_/)
      .waitFor();
    await keep();
    assert.equal(await page.getByRole('row').filter({ hasText: 'ada@example.org' }).count(), 1);
    await leave();
  });

  test('says so to administrators, until they hide it, and to nobody else', async () => {
    const visited = await visit();
    const { who, page, button, heading, leave } = visited;
    const notice = page.getByText('This server sends no mail.');
    await notice.waitFor();
    await assertFits(visited);
    await picture(visited, 'no-mail');
    await button('Hide').click();
    await notice.waitFor({ state: 'detached' });
    await page.reload();
    await heading('Instances').waitFor();
    assert.equal(await notice.count(), 0);
    await leave();
    const member = await visit('/', { org_id: who.org_id, role: 'member' });
    await member.heading('Instances').waitFor();
    assert.equal(await member.page.getByText('This server sends no mail.').count(), 0);
    await member.leave();
  });

  test('names the command on the server for a forgotten password, and asks for the invitation of a new account', async () => {
    const visited = await visit();
    const { page, button, heading, leave } = visited;
    await button('Log out').click();
    await page.getByRole('link', { name: 'Forgotten password' }).click();
    await page.getByText('berth user reset-password ADDRESS').waitFor();
    assert.equal(await page.getByRole('textbox').count(), 0, 'it asks for no address');
    await assertFits(visited);
    await picture(visited, 'forgotten');
    await page.getByRole('link', { name: 'Back to the login' }).click();
    await page.getByRole('link', { name: 'I have an invitation' }).click();
    await heading('Create an account').waitFor();
    await page.getByLabel('Invitation link').waitFor();
    await assertFits(visited);
    await picture(visited, 'register');
    await leave();
  });
});

describe('the console of a server with open sign-ups', { skip: NO_BROWSER, timeout: 600_000 }, async () => {
  if (NO_BROWSER) return;
  const { visit } = await consoleForFile({ signups: 'open' });

  test('creates an account without asking for an invitation', async () => {
    const { page, button, heading, leave } = await visit();
    await button('Log out').click();
    await page.getByRole('link', { name: 'Create an account' }).click();
    await heading('Create an account').waitFor();
    assert.equal(await page.getByLabel('Invitation link').count(), 0);
    await page.getByLabel('E-mail').fill('new@example.org');
    await page.getByLabel('Password').fill(PASSWORD);
    await button('Create the account').click();
    await button('Log out').waitFor();
    await leave();
  });
});
