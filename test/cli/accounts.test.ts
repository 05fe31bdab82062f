/** Members, invitations, sessions, second factors, organisations and the account on the command line. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { Cli, type Ran } from '../support/cli.ts';
import { makeKey, type Person, type PersonOptions } from '../support/people.ts';
import { totpCode } from '../support/totp-code.ts';

const api = await apiForFile();
const PASSWORD = 'correct horse battery';

interface User {
  readonly who: Person;
  readonly cli: Cli;
  /** Runs a command that takes the password. */
  readonly by: (...args: string[]) => Promise<Ran>;
  /** Returns its stdout. */
  readonly done: (...args: string[]) => Promise<string>;
  readonly json: <T>(...args: string[]) => Promise<T>;
}

async function loggedIn(options: PersonOptions = {}): Promise<User> {
  const who = await api.person({ ...options, password: PASSWORD });
  const cli = new Cli();
  const by = (...args: string[]) => cli.run([...args, '--password-stdin'], PASSWORD);
  const done = async (...args: string[]) => {
    const { code, out, err } = await by(...args);
    assert.deepEqual([code, err], [0, ''], out);
    return out;
  };
  await done('login', '--url', api.origin, '--email', who.email);
  return { who, cli, by, done, json: async (...args) => JSON.parse(await done(...args, '--json')) };
}

describe('a command that needs a session', () => {
  test('asks for the password, takes it from stdin, and asks no more for five minutes after sudo', async () => {
    const { who, cli, done } = await loggedIn();
    assert.match(await cli.fails(2, 'session', 'ls'), /--password-stdin/);
    await done('sudo');
    assert.match(await cli.done('session', 'ls'), /^PROGRAM +ADDRESS +LAST SEEN/);
    // Its session was ended elsewhere: the password is asked for again.
    await api.as(who).call('DELETE', '/v1/auth/sessions');
    const asked = await cli.fails(2, 'session', 'ls');
    assert.match(
      asked,
      new RegExp(
        `needs an answer to “Password of ${who.email}”, .*\\n {2}next: berth session ls --password-stdin`,
      ),
    );
  });

  test('needs a login: a key from the environment opens no session', async () => {
    const who = await api.person();
    const { key } = await makeKey(api.db, who, '*');
    const cli = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key });
    assert.match(await cli.fails(4, 'member', 'ls'), /needs your password.*\n {2}next: berth login\n/);
  });

  test('leaves no session behind', async () => {
    const { who, done } = await loggedIn();
    await done('member', 'ls');
    const { body } = await api.as(who).get<{ data: { id: string }[] }>('/v1/auth/sessions');
    assert.deepEqual(
      body.data.map(({ id }) => id),
      [who.session_id],
    );
  });
});

describe('members and invitations', () => {
  test('ls, role and rm take an address or an id', async () => {
    const { who, done, by, json } = await loggedIn();
    const ada = await api.person({ org_id: who.org_id, role: 'member' });
    assert.match(await done('member', 'ls'), new RegExp(`^${who.email} \\(you\\) +Test Person +owner`, 'm'));
    const members = await json<{ id: string; role: string }[]>('member', 'ls');
    assert.deepEqual(new Set(members.map(({ id }) => id)), new Set([ada.user_id, who.user_id]));
    assert.equal(await done('member', 'role', ada.email, 'admin'), `${ada.email} is now admin.\n`);
    assert.match(
      (await by('member', 'role', ada.email, 'amdin')).err,
      /ROLE takes owner, admin, member or billing, not amdin\. Did you mean admin\?/,
    );
    assert.match(await done('member', 'rm', ada.user_id), new RegExp(`^Removed ${ada.email}\\.`));
    assert.match(
      (await by('member', 'rm', ada.email)).err,
      /there is no member .*\n {2}next: berth member ls\n/,
    );
  });

  test('without a mail server the inviter gets the link, and the invited accepts it', async () => {
    const { done, by } = await loggedIn();
    const ada = await loggedIn();
    const out = await done('invitation', 'create', ada.who.email, '--role', 'admin');
    const link = /^http\S+#token=berth_mail_\w+$/m.exec(out)?.[0] ?? assert.fail(out);
    assert.match(out, /sends no mail: pass this link on/);
    assert.match(out, /^This link opens only on the server itself.*BERTH_PUBLIC_URL/m);
    assert.match(await done('invitation', 'ls'), new RegExp(`^${ada.who.email} +admin`, 'm'));
    assert.match(
      (await by('invitation', 'accept', link)).err,
      /^berth: This invitation is for another address, was used or withdrawn, or has expired\.\n {2}next: log in with the address that was invited; /,
    );
    assert.match(
      (await by('invitation', 'create', ada.who.email)).err,
      new RegExp(`is invited already .*\\n {2}next: berth invitation rm ${ada.who.email}\n$`),
    );
    assert.match(
      await ada.done('invitation', 'accept', link),
      /^You are now a member of Org\..*berth login --org/,
    );
    assert.equal((await ada.by('invitation', 'accept', 'nonsense')).code, 2);
    assert.match(await done('invitation', 'ls'), /^No open invitations/);
    assert.match(await ada.done('org', 'ls'), /^Org \(this login\) .*$/m);
    await done('invitation', 'create', 'eve@example.org');
    assert.equal(
      await done('invitation', 'rm', 'eve@example.org'),
      'Withdrew the invitation of eve@example.org.\n',
    );
  });
});

describe('sessions', () => {
  test('are named by program and system; one ends by its name, the rest at once', async () => {
    const { who, done, by, json } = await loggedIn();
    const login = (user_agent: string) =>
      api.client.post(
        '/v1/auth/login',
        { email: who.email, password: PASSWORD },
        {
          headers: { 'user-agent': user_agent },
        },
      );
    await login('Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0');
    await login('curl/8.14.1');
    await login('curl/8.14.1');
    const list = await done('session', 'ls');
    assert.match(list, /^Firefox on Linux +127\.0\.0\.1/m);
    assert.match(list, /^berth command line on Linux \(this command\)/m);
    assert.match(
      await done('session', 'rm', 'Firefox on Linux'),
      /^Ended the session of Firefox on Linux, from/,
    );
    const several = await by('session', 'rm', 'curl');
    assert.equal(several.code, 2);
    assert.match(several.err, /stands for several sessions; name one by its id:\n {2}sess_\w+ {2}curl, from/);
    assert.equal((await by('session', 'rm')).code, 2);
    const key_works = async () => (await json<{ id: string }[]>('session', 'ls')).length;
    assert.match(await done('session', 'rm', '--others'), /^Ended 3 sessions\. API keys, .* continue\.\n$/);
    assert.equal(await key_works(), 1);
  });
});

describe('second factors', () => {
  test('add shows the secret, verify prints the recovery codes, and rm needs a factor by then', async () => {
    const { done, by, json } = await loggedIn();
    assert.match(await done('mfa', 'ls'), /^No second factor: your password alone gives access\./);
    const added = await json<{ id: string; secret: string }>('mfa', 'add', 'phone');
    assert.match(await done('mfa', 'ls'), /^phone \(not confirmed\) +authenticator app/m);
    const code = (steps: number) => totpCode(added.secret, Date.now() / 1_000 + 30 * steps);
    assert.equal((await by('mfa', 'verify', 'phone', 'abc')).code, 2);
    const verified = await done('mfa', 'verify', 'phone', code(0));
    assert.match(verified, /^phone is confirmed: .*\nRecovery codes, shown only once\./);
    const recovery = verified.trim().split('\n').at(-1) ?? '';
    assert.match((await by('mfa', 'ls')).err, /next: berth mfa ls --password-stdin --totp CODE\n$/);
    assert.match(await done('mfa', 'ls', '--totp', code(1)), /^phone +authenticator app/m);
    assert.equal(await done('mfa', 'rm', 'phone', '--totp', recovery), 'Removed phone.\n');
  });
});

describe('the account', () => {
  test('show and rename', async () => {
    const { who, done } = await loggedIn();
    assert.match(await done('account'), new RegExp(`^e-mail +${who.email}\\n`));
    assert.match(await done('account', 'rename', 'Ada Lovelace'), /^name +Ada Lovelace$/m);
  });

  test('a new address is confirmed by the link of the mail, and the login knows it', async () => {
    const { cli, done } = await loggedIn();
    const email = `${newId('usr')}@example.org`;
    assert.match(
      await done('account', 'email', email),
      /sends no mail: the mail to .* is a file in the data folder/,
    );
    const text = api.mails.findLast(({ to }) => to === email)?.text ?? '';
    const link = /^http\S+#token=\S+$/m.exec(text)?.[0] ?? assert.fail(text);
    assert.equal(await done('account', 'confirm', link), `${email} is confirmed.\n`);
    assert.match(await cli.done('whoami'), new RegExp(`^e-mail +${email}$`, 'm'));
  });

  test('password takes two lines, ends the sessions, and the key of the login continues', async () => {
    const { who, cli } = await loggedIn();
    const change = (input: string) => cli.run(['account', 'password', '--password-stdin'], input);
    assert.equal((await change(PASSWORD)).code, 2);
    const changed = await change(`${PASSWORD}\nanother good password\n`);
    assert.deepEqual([changed.code, changed.err], [0, '']);
    assert.equal((await api.as(who).get('/v1/me')).status, 401);
    await cli.done('ls');
    assert.equal((await cli.run(['account', '--password-stdin'], 'another good password')).code, 0);
  });

  test('rm asks for the address', async () => {
    const { who, cli, by, done } = await loggedIn();
    assert.match(
      (await by('account', 'rm')).err,
      new RegExp(`next: berth account rm --password-stdin --yes ${who.email}\\n`),
    );
    assert.match((await by('account', 'rm', '--yes', 'ada@example.org')).err, /nothing was deleted/);
    assert.equal(await done('account', 'rm', '--yes', who.email), `Deleted the account ${who.email}.\n`);
    assert.match(await cli.fails(4, 'ls'), /not logged in/);
  });
});

describe('organisations and service accounts', () => {
  test('show has the quotas, create and ls, rename, a billing address', async () => {
    const { cli, done } = await loggedIn();
    assert.match(await cli.done('org', 'show'), /^name +Org\n[\s\S]*^instances +0 of unlimited$/m);
    const made = await done('org', 'create', 'Engines', '-q');
    assert.match(made, /^org_\w+\n$/);
    assert.match(await done('org', 'ls'), new RegExp(`^Engines .* ${made}`, 'm'));
    assert.match(await cli.done('org', 'rename', 'Looms'), /now called Looms\.\n$/);
    assert.equal(
      await done('org', 'billing-email', 'bills@example.org'),
      'Bills now go to bills@example.org.\n',
    );
  });

  test('a service account is named where it is given a key, and deleted by its name', async () => {
    const { cli } = await loggedIn();
    const out = await cli.done('service-account', 'create', 'ci', '--scope', 'instances:read');
    assert.match(
      out,
      /^Created ci \(sa_\w+\): its keys may have instances:read\. Give it a key: berth .*key create NAME --service-account sa_\w+\n$/,
    );
    assert.match(await cli.done('api-key', 'create', 'build', '--service-account', 'ci'), /instances:read\./);
    assert.match(await cli.done('service-account', 'ls'), /^ci +instances:read/m);
    assert.match(await cli.done('service-account', 'rm', 'ci'), /^Deleted ci\./);
    assert.match(await cli.fails(3, 'service-account', 'rm', 'ci'), /next: berth service-account ls\n/);
  });
});

describe('two keys of one name', () => {
  test('are listed with their ids; each goes by its id or its prefix, and the name names both', async () => {
    const { cli, by } = await loggedIn();
    const one = await cli.done('api-key', 'create', 'ci', '--expires', '90d');
    assert.match(
      one,
      /^Created ci \(ak_\w+\) with all permissions\. It expires 20\S+ \S+ \(in 90 d\)\. The key/,
    );
    const [id = ''] = /ak_\w+/.exec(one) ?? [];
    const other = await cli.run(['api-key', 'create', 'ci']);
    assert.match(other.out, /It does not expire\./);
    assert.match(other.err, new RegExp(`another API key is called ci too, .*\\n {2}${id} {2}berth_live_`));
    const keys = await cli.json<{ id: string; name: string; prefix: string }[]>('api-key', 'ls');
    const [first, second] = keys.filter(({ name }) => name === 'ci');
    assert(first && second);
    assert.match(await cli.done('api-key', 'ls'), new RegExp(`^ci .* ${first.id}$`, 'm'));
    const several = await cli.fails(2, 'api-key', 'rm', 'ci');
    for (const { id, prefix } of [first, second])
      assert.ok(several.includes(`\n  ${id}  ${prefix}…`), several);
    assert.equal((await by('api-key', 'rotate', first.id)).code, 0);
    await cli.done('api-key', 'rm', second.prefix);
    assert.match(await cli.done('api-key', 'rm', 'ci'), /ci/, 'now it is the only one');
  });
});

test('logout keeps the server and the address for the next login', async () => {
  const { who, cli, by } = await loggedIn();
  await cli.done('logout');
  assert.match(await cli.fails(4, 'ls'), new RegExp(`not logged in at ${api.origin}`));
  const again = await by('login');
  assert.deepEqual([again.code, again.err], [0, '']);
  assert.ok(again.out.startsWith(`You are logged in at ${api.origin} as ${who.email}`), again.out);
});

describe('notifications', () => {
  test('mail lists each kind with a description, and mutes one', async () => {
    const { cli } = await loggedIn();
    assert.match(await cli.done('notification', 'mail'), /^vm\.failed +on +A VM has failed/m);
    assert.equal(
      await cli.done('notification', 'mail', 'vm.failed', 'off'),
      'vm.failed is no longer mailed.\n',
    );
    assert.match(await cli.done('notification', 'mail'), /^vm\.failed +off/m);
    assert.match(await cli.done('notification', 'mail'), /^account\.locked +always/m);
    await cli.fails(2, 'notification', 'mail', 'account.locked', 'off');
    assert.match(
      await cli.fails(2, 'notification', 'mail', 'vm.lost', 'off'),
      /there is no kind of notification vm\.lost/,
    );
  });

  test('read marks one by its id, and takes it back', async () => {
    const { cli } = await loggedIn();
    await cli.done('api-key', 'create', 'ci');
    const { raiseNotificationsOfEvents } = await import('../support/notifications.ts');
    await raiseNotificationsOfEvents(api.db);
    const [newest] = await cli.json<{ id: string }[]>('notifications');
    assert(newest);
    const unread = async () => (await cli.done('notifications', '-q')).split('\n').includes(newest.id);
    assert.equal(await cli.done('notification', 'read', newest.id), '1 marked as read.\n');
    assert.equal(await unread(), false);
    await cli.done('notification', 'read', newest.id, '--unread');
    assert.equal(await unread(), true);
    assert.match(await cli.done('notification', 'read', '--all'), /^\d+ marked as read\.\n$/);
    await cli.fails(2, 'notification', 'read');
  });
});
