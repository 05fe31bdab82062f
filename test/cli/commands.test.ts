/** Every user command as a process against the API: its output for people, --json and -q, and its exit codes. */
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { freeDeleted } from '../../src/control-plane/disks/remove-objects.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile, type InstanceOut } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeKey, makeSudo, type Person } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { totpCode } from '../support/totp-code.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const objects = mkdtempSync(join(tmpdir(), 'berth-objects-'));
after(() => rmSync(objects, { recursive: true, force: true }));
const store = await FolderStore.open(objects);
const PASSWORD = 'correct horse battery';
const ID = /^inst_[0-9a-z]{26}\n$/;

/** Logged in by a key in the environment: what a program has. */
async function somebody(): Promise<{ cli: Cli; who: Person }> {
  const who = await api.person();
  const { key } = await makeKey(api.db, who, '*');
  return { cli: new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key }), who };
}
/** Logged in by password. */
async function loggedIn(): Promise<{ cli: Cli; who: Person }> {
  const who = await api.person({ password: PASSWORD });
  const cli = new Cli();
  const ran = await cli.run(
    ['login', '--url', api.origin, '--email', who.email, '--password-stdin'],
    PASSWORD,
  );
  assert.deepEqual([ran.code, ran.err], [0, ''], ran.out);
  return { cli, who };
}
const configOf = (cli: Cli) => join(cli.home, '.config', 'berth', 'config.json');
/** Of the login called `default`. */
function keyIn(cli: Cli): string {
  const { profiles } = JSON.parse(readFileSync(configOf(cli), 'utf8')) as {
    profiles: { default: { api_key: string } };
  };
  return profiles.default.api_key;
}
async function answers(id: InstanceId): Promise<void> {
  await api.agent.assigned(id);
  await api.agent.ready(id);
}

describe('the first password, kept by the server on this machine', () => {
  test('is used without a question by a user who can read it, and deleted once it is wrong', async () => {
    const who = await api.person({ password: PASSWORD });
    const cli = new Cli();
    const folder = join(cli.home, 'data', 'secrets');
    mkdirSync(folder, { recursive: true });
    const path = join(folder, 'first-login');
    const keep = (password: string, url = api.origin) =>
      writeFileSync(path, JSON.stringify({ url, email: who.email, password }));
    const login = ['login', '--url', api.origin, '--email', who.email];
    keep(PASSWORD, api.origin.replace('127.0.0.1', 'localhost'));
    const out = await cli.done(...login);
    assert.ok(out.startsWith(`You are logged in at ${api.origin} as ${who.email}`), out);
    assert.ok(out.includes(`\nThe first password is in ${path};`), out);
    keep(PASSWORD, 'http://127.0.0.1:1');
    assert.match(await cli.fails(2, ...login), /no terminal to ask on/, 'another server’s is not sent');
    // Nobody is asked for the password of a server that is not there.
    assert.match(
      await cli.fails(6, 'login', '--url', 'http://127.0.0.1:9', '--email', who.email),
      /does not answer: .*\n {2}next: (npm start|berth doctor)/,
    );
    keep('no longer the password');
    assert.match(await cli.fails(2, ...login), /no terminal to ask on/);
    assert.ok(!existsSync(path));
  });
});

describe('instances', () => {
  test('none: a person reads what to type, a program an empty list', async () => {
    const { cli } = await somebody();
    assert.equal(await cli.done('ls'), 'No instances yet. Create one: berth create NAME\n');
    assert.deepEqual(await cli.json('ls'), []);
    assert.equal(await cli.done('ls', '-q'), '');
  });

  test('create, ls, show, set and rm take names and ids, and print for people and programs', async () => {
    const { cli } = await somebody();
    const sizes = ['--cpus', '2', '--memory', '1g', '--disk', '9', '--label', 'a=b', '--auto-flush', 'off'];
    assert.equal(await cli.done('create', 'web', ...sizes), 'Created web. Start it: berth start web\n');
    assert.match(await cli.done('instance', 'create', 'db', '-q'), ID);
    const made = await cli.json<InstanceOut>('show', 'web');
    assert.deepEqual(
      [made.cpus, made.memory_mib, made.disk_gib, made.auto_flush_seconds],
      [2, 1024, 9, null],
    );
    assert.deepEqual(made.labels, { a: 'b' });
    const list = await cli.done('ls');
    assert.match(list, /^NAME +STATE +CPUS +MEMORY +DISK +SAVED +CREATED\n/);
    assert.match(
      list,
      /^web +stopped +2 +1 GiB +9 GiB +nothing yet +\d{4}-\d\d-\d\d \d\d:\d\d \((?:just now|\d+ s ago)\)$/m,
    );
    assert.deepEqual((await cli.done('ls', '-q')).split('\n').sort(), ['', 'db', 'web']);
    assert.equal(await cli.done('ls', '-q', '-l', 'a=b'), 'web\n');
    assert.equal(await cli.done('ls', '-q', '-l', 'a', '-l', 'a=b'), 'web\n');
    assert.match(await cli.done('ls', '-l', 'a=b', '-l', 'a=c'), /No instances match/);
    const shown = await cli.done('show', made.id);
    assert.match(shown, /^name +web$/m);
    assert.match(shown, /^cpus +2\nmemory +1 GiB\ndisk +9 GiB,/m);
    assert.match(
      await cli.done('set', 'web', '--memory', '2048', '--name', 'www'),
      /^cpus +2\nmemory +2 GiB/m,
    );
    assert.match(await cli.fails(2, 'rm', 'www'), /deletes www .*\n {2}next: berth rm www --yes\n/);
    assert.match(await cli.done('rm', '-y', '--no-wait', 'www', 'db'), /^Deleting www, db\.\n$/);
  });

  test('rm waits until all is gone', async () => {
    const { cli, who } = await somebody();
    const { name, id } = await api.instance(who);
    const removing = cli.start(['rm', '--yes', name]);
    await until(
      'it is being deleted',
      async () => (await api.as(who).get<InstanceOut>(`/v1/instances/${id}`)).body.deleting,
    );
    await freeDeleted(api.db, store, api.context.log);
    const { code, out, err } = await removing.ended;
    assert.deepEqual([code, out, err], [0, `Deleted ${name}.\n`, '']);
  });

  test('what is wrong is told with what to type next, and the exit code says which kind it is', async () => {
    const { cli, who } = await somebody();
    const { name } = await api.instance(who);
    assert.match(await cli.fails(3, 'show', 'nothing'), /called nothing\.\n {2}next: berth ls\n$/);
    assert.match(await cli.fails(5, 'create', name), /^berth: .*\n/);
    assert.match(
      await cli.fails(2, 'create', 'Not A Name'),
      /a name has 1 to 63 characters, each a-z, 0-9 or -, and no - at its ends, not Not A Name\n/,
    );
    assert.match(await cli.fails(2, 'create', 'x', '--cpus', 'many'), /--cpus takes a whole number/);
    assert.match(await cli.fails(2, 'create', 'x', '--frobnicate'), /^usage: berth create NAME/);
    assert.match(await cli.fails(2, 'create'), /NAME is missing\n {2}next: berth help create\n/);
    assert.match(await cli.fails(5, 'restart', name), new RegExp(`next: berth start ${name}\n`));
    assert.match(await cli.fails(5, 'ssh', '--no-start', name), new RegExp(`next: berth start ${name}\n`));
    const stranger = new Cli({ BERTH_URL: api.origin });
    assert.match(await stranger.fails(4, 'ls'), /not logged in.*\n {2}next: berth login\n/);
    const wrong = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: 'berth_live_wrong' });
    assert.match(await wrong.fails(4, 'ls'), /next: BERTH_API_KEY is set to an invalid or revoked key/);
    const away = new Cli({ BERTH_URL: 'http://127.0.0.1:1', BERTH_API_KEY: 'berth_live_wrong' });
    assert.match(await away.fails(6, 'ls'), /does not answer.*\n {2}next: berth doctor\n/);
  });
});

describe('VMs', () => {
  test('start waits until SSH works, flush prints its receipt, stop waits until all is saved', async () => {
    const { cli, who } = await somebody();
    const { name, id } = await api.instance(who);
    assert.match(await cli.done('start', name, '--no-wait'), new RegExp(`^${name}: starting\n$`));
    const starting = cli.start(['start', name]);
    await answers(id);
    const started = await starting.ended;
    assert.match(started.out, new RegExp(`^${name} runs \\([^)]+\\)\\. Log in: berth ssh ${name}\n$`));
    assert.equal(started.err, '', 'no progress where nobody watches');
    assert.match(await cli.done('ls'), new RegExp(`^${name} +running`, 'm'));
    const flushing = cli.start(['flush', name]);
    const flush_id = await api.agent.askedToFlush(id);
    await api.agent.commit(id, 1);
    await api.agent.endFlush(flush_id);
    assert.match(
      (await flushing.ended).out,
      /: 4 KiB saved as generation 1, 1 KiB uploaded in 12 ms, consistency filesystem\n$/,
    );
    const restarting = cli.start(['restart', name, '--json']);
    await api.agent.assigned(id, 'it is to reboot', ({ reboots }) => reboots === 1);
    await api.agent.ready(id);
    assert.equal((JSON.parse((await restarting.ended).out) as { state: string }).state, 'running');
    const suspending = cli.start(['suspend', name]);
    await api.agent.assigned(id, 'it is to be suspended', ({ desired }) => desired === 'suspended');
    await api.agent.suspended(id);
    assert.match((await suspending.ended).out, /is suspended; memory and disk saved/);
    assert.match(await cli.done('suspend', name), /is suspended; memory and disk saved/, 'it is already');
    const resuming = cli.start(['start', name]);
    await api.agent.assigned(id, 'it is to go on', ({ resume }) => resume !== null);
    await api.agent.ready(id, { code: 'cold_boot', message: 'Its memory is damaged.' });
    assert.match((await resuming.ended).out, /runs.*Its memory is damaged\./s);
    const again = cli.start(['suspend', name]);
    await api.agent.assigned(id, 'it is to be suspended', ({ desired }) => desired === 'suspended');
    const reason = { code: 'suspend_failed', message: 'The object store is away.' } as const;
    await api.agent.observe(id, { kind: 'suspend_failed', reason });
    assert.match((await again.ended).err, /runs on: The object store is away/);
    const stopping = cli.start(['stop', '-f', name]);
    const { force } = await api.agent.assigned(id, 'it is to stop', ({ desired }) => desired === 'stopped');
    await api.agent.stopped(id);
    assert.match((await stopping.ended).out, new RegExp(`^${name} is stopped; all saved \\(`));
    assert.equal(force, true);
  });

  test('a VM that fails is told with its reason', async () => {
    const { cli, who } = await somebody();
    const { name, id } = await api.instance(who);
    const starting = cli.start(['start', name]);
    await api.agent.assigned(id);
    await api.agent.failed(id, 'start_failed');
    const { code, err } = await starting.ended;
    assert.equal(code, 1);
    assert.match(
      err,
      new RegExp(`^berth: the VM has failed: It died\\. \\(start_failed\\)\n {2}next: berth show ${name}\n$`),
    );
    await api.agent.heartbeat([{ instance_id: id, dirty_bytes: 3 * 2 ** 20 }]);
    assert.match(await cli.done('show', name), /^saved +at most 3 MiB unsaved$/m);
  });

  test('a suspended VM that cannot be resumed is told with its reason, at once', async () => {
    const { cli, who } = await somebody();
    const { name, id } = await instanceIn(api, who, 'suspended');
    const starting = cli.start(['start', name]);
    await api.agent.assigned(id, 'it is to resume', ({ resume }) => resume !== null);
    const reason = { code: 'resume_failed', message: 'Its memory is kept.' } as const;
    await api.agent.observe(id, { kind: 'resume_failed', reason });
    const { code, err } = await starting.ended;
    assert.equal(code, 1);
    assert.match(err, /^berth: the VM is suspended again: Its memory is kept\. \(resume_failed\)\n/);
  });

  test('a start that somebody undoes ends the waiting', async () => {
    const { cli, who } = await somebody();
    const { name, id } = await api.instance(who);
    const starting = cli.start(['start', name]);
    await api.agent.assigned(id);
    await cli.done('stop', '-f', '--no-wait', name);
    await api.agent.stopped(id);
    const { code, err } = await starting.ended;
    assert.equal(code, 1);
    assert.match(err, /the VM is stopped: it was stopped meanwhile/);
  });

  test('Ctrl-C ends the waiting with 130, says that the server goes on, and it does', async () => {
    const { cli, who } = await somebody();
    const { name, id } = await api.instance(who);
    const starting = cli.onTerminal(['start', name]);
    await api.agent.assigned(id);
    await until('it shows that it waits', () => starting.out().includes(`starting ${name}`));
    starting.child.stdin?.write('\u0003');
    const { code, out } = await starting.ended;
    assert.equal(code, 130, out);
    assert.match(out, new RegExp(`stopped waiting; the server goes on starting ${name}`));
    await api.agent.ready(id);
    assert.match(await cli.done('show', name), /^state +running$/m);
  });
});

describe('login', () => {
  test('leaves a key of this machine in a file that nobody else reads; whoami and logout know it', async () => {
    const { cli, who } = await loggedIn();
    assert.equal(statSync(configOf(cli)).mode & 0o777, 0o600);
    assert.match(await cli.done('whoami'), new RegExp(`^e-mail +${who.email}\n`));
    assert.equal(await cli.done('whoami', '-q'), `${who.email}\n`);
    const text = readFileSync(configOf(cli), 'utf8');
    assert.ok(!text.includes(PASSWORD) && !text.includes('berth_sess_'), 'neither password nor session');
    const key = keyIn(cli);
    assert.equal((await api.as(key).get('/v1/instances')).status, 200);
    const again = await cli.run(['login', '--password-stdin', '--email', who.email], PASSWORD);
    assert.equal(again.code, 0, again.err);
    assert.equal((await api.as(key).get('/v1/instances')).status, 401, 'the one before is revoked');
    const of_who = keyIn(cli);
    const other = await api.person({ password: PASSWORD });
    assert.equal((await cli.run(['login', '--password-stdin', '--email', other.email], PASSWORD)).code, 0);
    assert.equal((await api.as(of_who).get('/v1/instances')).status, 401, 'another account’s too');
    assert.match(await cli.done('logout'), /logged out/);
    assert.match(await cli.fails(4, 'ls'), /not logged in/);
    const sessions = await api.db
      .selectFrom('sessions')
      .select('id')
      .where('user_id', '=', who.user_id)
      .execute();
    assert.deepEqual(
      sessions.map(({ id }) => id),
      [who.session_id],
      'no session of ours is left',
    );
  });

  test('several profiles, each with its server; a key is never sent to another', async () => {
    const { cli, who } = await loggedIn();
    const other = await api.person({ password: PASSWORD });
    await api.instance(other);
    const of_whom = ['--email', other.email, '--password-stdin'];
    const login = ['login', '--profile', 'other', '--url', api.origin, ...of_whom];
    assert.equal((await cli.run(login, PASSWORD)).code, 0);
    assert.equal(await cli.done('whoami', '-q'), `${other.email}\n`);
    assert.match(
      await cli.fails(4, 'ls', '--profile', 'nope'),
      /there is no login “nope”; there is .*default.*\n {2}next: berth login --profile nope\n/,
    );
    assert.equal(await cli.done('whoami', '-q', '--profile', 'default'), `${who.email}\n`);
    const sudo = await cli.run(['sudo', '--profile', 'default', '--password-stdin'], PASSWORD);
    assert.equal(sudo.code, 0, sudo.err);
    assert.equal(await cli.done('whoami', '-q'), `${other.email}\n`, 'the last login is still meant');
    cli.env['BERTH_PROFILE'] = '';
    cli.env['BERTH_URL'] = '';
    assert.equal(await cli.done('whoami', '-q'), `${other.email}\n`, 'set to nothing they are not set');
    const third = ['login', '--profile', 'third', '--email', who.email, '--password-stdin'];
    const logged_in = await cli.run(third, PASSWORD);
    assert.match(
      logged_in.out,
      new RegExp(`^You are logged in at ${api.origin} `),
      'at the last login’s server',
    );
    assert.equal((await cli.run(['login', '--profile', 'other', ...of_whom], PASSWORD)).code, 0);
    assert.match(
      await cli.fails(4, 'ls', '--url', 'http://127.0.0.1:1'),
      /is for http:\/\/127\.0\.0\.1:\d+, not for/,
    );
  });

  test('asks on a terminal, and does not show the password', async () => {
    const who = await api.person({ password: PASSWORD });
    const cli = new Cli({ BERTH_URL: api.origin });
    const first = cli.onTerminal(['login']);
    await until('it asks for the one thing it cannot know', () =>
      first.out().includes('Password of admin@localhost'),
    );
    first.child.stdin?.write('\u0003');
    assert.equal((await first.ended).code, 130);
    const login = cli.onTerminal(['login', '--email', who.email]);
    await until('it asks for the password', () => login.out().includes(`Password of ${who.email}`));
    login.child.stdin?.write(`${PASSWORD}x\u007f\r`);
    const { code, out } = await login.ended;
    assert.equal(code, 0, out);
    assert.ok(!out.includes(PASSWORD), out);
    assert.match(out, /You are logged in .*\r\nRegister your SSH key: berth ssh-key add/);
  });

  test('a wrong password is 4; a second factor is asked for by its option', async () => {
    const who = await api.person({ password: PASSWORD });
    const cli = new Cli({ BERTH_URL: api.origin });
    const login = (password: string, ...more: string[]) =>
      cli.run(['login', '--email', who.email, '--password-stdin', ...more], password);
    const wrong = await login('wrong password');
    assert.deepEqual([wrong.code, wrong.err.includes('next: the same again')], [4, true], wrong.err);
    const options = { json: { type: 'totp', name: 'app' }, headers: await makeSudo(api.db, who) };
    const factor = await api
      .as(who)
      .call<{ id: string; secret: string }>('POST', '/v1/me/mfa/factors', options);
    const code = totpCode(factor.body.secret, Date.now() / 1_000);
    assert.equal(
      (await api.as(who).post(`/v1/me/mfa/factors/${factor.body.id}/verify`, { code })).status,
      200,
    );
    const refused = await login(PASSWORD);
    assert.deepEqual([refused.code, refused.err.includes('--totp CODE')], [4, true], refused.err);
    const next = totpCode(factor.body.secret, Date.now() / 1_000 + 30);
    assert.equal((await login(PASSWORD, '--totp', next)).code, 0);
  });
});

describe('API keys', () => {
  test('create prints the key once, ls never, rm revokes it', async () => {
    const { cli } = await somebody();
    assert.match(
      await cli.done('api-key', 'create', 'ci', '--scope', 'instances:read', '--expires', '90d'),
      /\nberth_live_\w{49}\n$/,
    );
    assert.match(await cli.done('api-key', 'create', 'deploy', '-q'), /^berth_live_\w{49}\n$/);
    const list = await cli.done('api-key', 'ls');
    assert.match(list, /^ci +berth_live_\w+…\w{4} +you +instances:read +never +20\S+ \d\d:\d\d \(in 90 d\)/m);
    assert.ok(!/berth_live_\w{49}/.test(list));
    assert.equal(await cli.done('api-key', 'rm', 'ci'), 'Revoked ci.\n');
  });

  test('rm --descendants revokes what was made with it too', async () => {
    const { cli } = await somebody();
    const key = (await cli.done('api-key', 'create', 'leaked', '-q')).trim();
    for (const name of ['child', 'second']) {
      const made = await api.as(key).post('/v1/api-keys', { name, scope: 'vm:read' });
      assert.equal(made.status, 201, made.text);
    }
    assert.equal(await cli.done('api-key', 'rm', 'second'), 'Revoked second.\n');
    assert.match(await cli.done('api-key', 'ls'), /^child /m);
    assert.match(await cli.done('api-key', 'rm', 'leaked', '--descendants'), /^Revoked leaked and all /);
    assert.doesNotMatch(await cli.done('api-key', 'ls'), /^(child|leaked) /m);
  });

  test('rotate asks for the password, unless sudo was said before', async () => {
    const { cli } = await loggedIn();
    const before = await cli.done('api-key', 'create', 'ci', '-q');
    assert.match(await cli.fails(2, 'api-key', 'rotate', 'ci'), /--password-stdin/);
    const rotated = await cli.run(['api-key', 'rotate', 'ci', '--password-stdin', '-q'], PASSWORD);
    assert.equal(rotated.code, 0, rotated.err);
    assert.notEqual(rotated.out, before);
    assert.equal((await api.as(before.trim()).get('/v1/instances')).status, 401);
    assert.equal((await cli.run(['sudo', '--password-stdin'], PASSWORD)).code, 0);
    assert.equal(statSync(configOf(cli)).mode & 0o777, 0o600);
    await cli.done('api-key', 'rotate', 'ci');
    assert.equal(await cli.done('sudo', '--end'), 'From now on you are asked again.\n');
    assert.match(await cli.fails(2, 'api-key', 'rotate', 'ci'), /--password-stdin/);
    await cli.run(
      [
        'key',
        'rotate',
        (JSON.parse(readFileSync(configOf(cli), 'utf8')) as { profiles: { default: { api_key_id: string } } })
          .profiles.default.api_key_id,
        '--password-stdin',
      ],
      PASSWORD,
    );
    assert.match(await cli.done('whoami'), /^e-mail/, 'our own key, rotated, goes on');
  });
});
