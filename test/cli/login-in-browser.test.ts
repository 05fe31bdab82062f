/** Logins that the user confirms in a browser: for accounts without a password. The browser is a call of the API here. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { apiForFile, type TestApi } from '../support/api.ts';
import { Cli, type Running } from '../support/cli.ts';
import { makeSudo, type Person } from '../support/people.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();

/** The code that a command shows while it waits. */
function codeOf({ err, ended }: Running): Promise<string> {
  const shown = until('a code', async () => /the code ([A-Z]{4}-[A-Z]{4})\.\n/.exec(err())?.[1]);
  const early = ended.then((ran) => assert.fail(`it waits for no browser: ${ran.code} ${ran.err}`));
  return Promise.race([shown, early]);
}

async function answer(at: TestApi, running: Running, who: Person, sudo = false): Promise<void> {
  const path = `/v1/auth/device-logins/${await codeOf(running)}/confirm`;
  const headers = sudo ? await makeSudo(at.db, who) : {};
  const { status, text } = await at.as(who).call('POST', path, { json: {}, headers });
  assert.equal(status, 204, text);
}

async function loggedIn() {
  const who = await api.person();
  const cli = new Cli();
  const running = cli.start(['login', '--url', api.origin, '--browser']);
  await answer(api, running, who);
  const { code, out, err } = await running.ended;
  assert.equal(code, 0, err);
  return { who, cli, out, err };
}

describe('berth login --browser', () => {
  test('shows a link and a code, and logs in as whoever confirms, without leaving a session', async () => {
    const { who, cli, out, err } = await loggedIn();
    assert.match(
      err,
      /^Open http:\/\/127\.0\.0\.1\/device\?code=[A-Z-]{9}\nand confirm within ten minutes, if it shows the code [A-Z-]{9}\.\n$/,
    );
    assert.ok(out.startsWith(`You are logged in at ${api.origin} as ${who.email}, in Org.`), out);
    assert.match(await cli.done('whoami'), new RegExp(`e-mail +${who.email}`));
    const { body } = await api.as(who).get<{ data: { id: string }[] }>('/v1/auth/sessions');
    assert.deepEqual(
      body.data.map(({ id }) => id),
      [who.session_id],
    );
  });

  test('fails when the user refuses', async () => {
    const who = await api.person();
    const cli = new Cli();
    const running = cli.start(['login', '--url', api.origin, '--browser']);
    await api.as(who).call('DELETE', `/v1/auth/device-logins/${await codeOf(running)}`);
    const { code, err } = await running.ended;
    assert.equal(code, 4, err);
    assert.match(err, /This login was refused/);
    assert.match(await cli.fails(4, 'whoami'), /not logged in/);
  });

  test('is what a login is where passwords are off', async () => {
    const alone = await apiForFile({ context: { password_login: false } });
    const who = await alone.person();
    const cli = new Cli();
    const running = cli.start(['login', '--url', alone.origin]);
    await answer(alone, running, who);
    const { code, err } = await running.ended;
    assert.equal(code, 0, err);
  });

  test('excludes a password', async () => {
    assert.match(await new Cli().fails(2, 'login', '--browser', '--password-stdin'), /exclude each other/);
  });
});

describe('a command that needs a session, after a login in a browser', () => {
  test('asks the browser again, and then no more for five minutes', async () => {
    const { who, cli } = await loggedIn();
    const first = cli.start(['member', 'ls']);
    await answer(api, first, who, true);
    const { code, out, err } = await first.ended;
    assert.equal(code, 0, err);
    assert.ok(out.includes(who.email));
    assert.match(await cli.done('session', 'ls'), /berth command line/);
    await cli.done('sudo', '--end');
    const again = cli.start(['sudo']);
    await answer(api, again, who, true);
    assert.match((await again.ended).out, /^Commands do not ask you again until /);
  });

  test('refuses another person, and ends that session', async () => {
    const { who, cli } = await loggedIn();
    const other = await api.person();
    const running = cli.start(['member', 'ls']);
    await answer(api, running, other, true);
    const { code, err } = await running.ended;
    assert.equal(code, 4, err);
    assert.match(err, new RegExp(`${other.email} confirmed this in the browser, but .* is ${who.email}’s`));
    const sessions = await api.db
      .selectFrom('sessions')
      .select('id')
      .where('user_id', '=', other.user_id)
      .execute();
    assert.deepEqual(sessions, [{ id: other.session_id }]);
  });
});
