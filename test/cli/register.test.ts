/** An account from the command line alone: by an invitation, and where sign-ups are open. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { Cli } from '../support/cli.ts';

const closed = await apiForFile();
const open = await apiForFile({ context: { signups: 'open' } });
const mailing = await apiForFile({ context: { signups: 'open', has_smtp: true } });
const PASSWORD = 'correct horse battery';

const newAddress = () => `${newId('usr')}@example.org`;

/** The link of an invitation, as its sender gets it. */
async function invited(email: string): Promise<{ readonly link: string; readonly org_id: string }> {
  const owner = await closed.person();
  const path = `/v1/orgs/${owner.org_id}/invitations`;
  const { body } = await closed.as(owner).post<{ accept_url: string }>(path, { email, role: 'admin' });
  // The link names the public URL, which is not the address of this test's server.
  return { link: body.accept_url.replace(/^http:\/\/[^/]+/, closed.origin), org_id: owner.org_id };
}

describe('with an invitation', () => {
  test('the link alone says where: the account is created, logged in, and acts in that organisation', async () => {
    const email = newAddress();
    const { link, org_id } = await invited(email);
    const cli = new Cli();
    const { code, out, err } = await cli.run(
      ['register', link, '--email', email, '--name', 'Ada', '--password-stdin'],
      `${PASSWORD}\n`,
    );
    assert.deepEqual([code, err], [0, ''], out);
    assert.match(
      out,
      new RegExp(
        `^Created the account\\. You are logged in at ${closed.origin} as ${email}, in Org\\.\nRegister your SSH key`,
      ),
    );
    const { org, email: me } = await cli.json<{ org: { id: string }; email: string }>('whoami');
    assert.deepEqual([org.id, me], [org_id, email]);
    // The next login goes to the same organisation again, although it is not the account's first one.
    await cli.done('logout');
    assert.equal((await cli.run(['login', '--password-stdin'], PASSWORD)).code, 0);
    assert.equal((await cli.json<{ org: { id: string } }>('whoami')).org.id, org_id);
    // No session is left.
    const sessions = await cli.run(['session', 'ls', '-q', '--password-stdin'], PASSWORD);
    assert.equal(sessions.out.trim().split('\n').length, 1);
  });

  test('another address, a used link and no link are refused with what to do', async () => {
    const email = newAddress();
    const { link } = await invited(email);
    const by = async (cli: Cli, ...args: string[]) =>
      cli.run(['register', ...args, '--password-stdin'], PASSWORD);
    const other = await by(new Cli(), link, '--email', newAddress());
    assert.deepEqual([other.code, other.out], [4, '']);
    assert.match(
      other.err,
      /is for another address\.\n {2}next: the address that was invited, with --email; /,
    );
    const cli = new Cli();
    assert.equal((await by(cli, link, '--email', email)).code, 0);
    const again = await by(cli, link, '--email', email);
    assert.equal(again.code, 5);
    assert.match(
      again.err,
      /^berth: the login “default” exists: .*\n {2}next: berth invitation accept LINK, to join with that account; or --profile NAME/,
    );
    assert.match((await by(new Cli(), 'nonsense')).err, /neither the link nor the token of a mail/);
    assert.match(
      await new Cli({ BERTH_URL: closed.origin }).fails(4, 'invitation', 'accept', link),
      /not logged in at .*\n {2}next: berth login, .*; without one: berth register LINK\n/,
    );
    const uninvited = await by(new Cli(), '--url', closed.origin);
    assert.equal(uninvited.code, 4);
    assert.match(uninvited.err, /^berth: sign-ups are closed at .*\n {2}next: .* berth register LINK\n$/);
  });
});

describe('where sign-ups are open', () => {
  test('an address and a password are enough; a taken address and a weak password are named', async () => {
    const email = newAddress();
    const by = (cli: Cli, password: string, ...args: string[]) =>
      cli.run(['register', '--url', open.origin, ...args, '--password-stdin'], password);
    assert.match(
      (await by(new Cli(), PASSWORD)).err,
      /needs an answer to “Your e-mail address at .*\n {2}next: berth register --url \S+ --password-stdin --email ADDRESS\n$/,
    );
    assert.match(
      (await by(new Cli(), 'short', '--email', email)).err,
      /^berth: the password must have at least 12 characters\n/,
    );
    const cli = new Cli();
    assert.equal((await by(cli, PASSWORD, '--email', email)).code, 0);
    assert.equal(await cli.done('whoami', '-q'), `${email}\n`);
    const taken = await by(new Cli(), PASSWORD, '--email', email);
    assert.equal(taken.code, 5);
    assert.match(taken.err, /\n {2}next: berth login\n$/);
  });

  test('a server that sends mails wants the address confirmed; the login takes the link', async () => {
    const email = newAddress();
    const cli = new Cli();
    const made = await cli.run(
      ['register', '--url', mailing.origin, '--email', email, '--password-stdin'],
      PASSWORD,
    );
    assert.equal(made.code, 2);
    assert.match(
      made.err,
      new RegExp(
        `a mail to ${email} has a link.*\n {2}next: berth login --url ${mailing.origin} --email ${email} --confirm LINK\n$`,
      ),
    );
    const mail = mailing.mails.find(({ to }) => to === email) ?? assert.fail('no mail');
    const link = /http\S+#token=\w+/.exec(mail.text)?.[0] ?? assert.fail(mail.text);
    const login = ['login', '--url', mailing.origin, '--email', email, '--password-stdin'];
    const { code, out, err } = await cli.run([...login, '--confirm', link], PASSWORD);
    assert.deepEqual([code, err], [0, ''], out);
    assert.match(out, new RegExp(`^You are logged in at .* as ${email}`));
  });
});

describe('a forgotten password', () => {
  test('is reset by a mail and its link, and the old one no longer works', async () => {
    const { email } = await mailing.person({ password: PASSWORD });
    const cli = new Cli({ BERTH_URL: mailing.origin });
    assert.match(
      await cli.done('account', 'reset-password', '--email', email),
      /^If \S+ has an account, a mail with a link goes there.*\nThen: berth account reset-password LINK\n$/,
    );
    const mail = mailing.mails.findLast(({ to }) => to === email) ?? assert.fail('no mail');
    const link = /http\S+#token=\w+/.exec(mail.text)?.[0] ?? assert.fail(mail.text);
    const here = link.replace(/^http:\/\/[^/]+/, mailing.origin);
    const reset = (password: string) =>
      new Cli().run(['account', 'reset-password', here, '--password-stdin'], password);
    assert.match((await reset('short')).err, /^berth: the new password must /);
    const { code, out, err } = await reset('another long passphrase');
    assert.deepEqual([code, err], [0, '']);
    assert.match(out, /^The password is changed\. All sessions have ended.*\nLog in: berth login\n$/);
    const login = (password: string) => cli.run(['login', '--email', email, '--password-stdin'], password);
    assert.equal((await login(PASSWORD)).code, 4);
    assert.equal((await login('another long passphrase')).code, 0);
    assert.match(
      (await reset('a third long passphrase')).err,
      /next: berth account reset-password --email ADDRESS, for a new link: each works once, for an hour/,
    );
  });

  test("on a server without mail is said to be its operator's to reset", async () => {
    const cli = new Cli({ BERTH_URL: closed.origin });
    assert.match(
      await cli.fails(1, 'account', 'reset-password', '--email', 'ada@example.org'),
      /sends no mail.*\n {2}next: its operator runs, on the server: berth user reset-password ada@example\.org\n/,
    );
  });
});
