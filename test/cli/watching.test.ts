/** Webhooks, notifications, events and audit on the command line; doctor, help and completion. */
import assert from 'node:assert/strict';
import { execFile, execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { promisify } from 'node:util';
import { COMMANDS } from '../../src/cli/command-table.ts';
import { reference } from '../../src/cli/help.ts';
import { apiForFile } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { appendNotifyingEvent, raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeKey, type Person } from '../support/people.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const BIN = join(import.meta.dirname, '..', '..', 'bin');
const URL_ = 'https://hooks.example.org/berth';

async function somebody(): Promise<{ cli: Cli; who: Person }> {
  const who = await api.person();
  const { key } = await makeKey(api.db, who, '*');
  return { cli: new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key }), who };
}

describe('webhooks', () => {
  test('create prints the secret once; ls, ping, deliveries, redeliver and rm take the name', async () => {
    const { cli } = await somebody();
    assert.match(
      await cli.done('webhook', 'create', URL_, '--event', 'vm.started'),
      /^hooks\.example\.org is made\..*:\nwhsec_\S+\n$/,
    );
    const list = await cli.done('webhook', 'ls');
    assert.match(list, /^hooks\.example\.org +enabled +vm\.started +https:\/\/hooks/m);
    assert.ok(!list.includes('whsec_'));
    assert.match(await cli.done('webhook', 'deliveries', 'hooks.example.org'), /^Nothing was sent yet/);
    assert.match(await cli.done('webhook', 'ping', 'hooks.example.org', '-q'), /^evt_\w+\n$/);
    await raiseNotificationsOfEvents(api.db);
    assert.match(
      await cli.fails(3, 'webhook', 'redeliver', 'hooks.example.org', 'whd_nothing'),
      /^berth: .*\n {2}next: berth webhook deliveries hooks\.example\.org\n/,
    );
    assert.equal(await cli.done('webhook', 'rm', 'hooks.example.org'), 'hooks.example.org is deleted.\n');
    assert.equal(await cli.done('webhook', 'ls'), 'No webhooks yet. Make one: berth webhook create URL\n');
    assert.match(
      await cli.fails(2, 'webhook', 'create', 'nonsense'),
      /^berth: .*url.*\n {2}next: .*berth webhook listen/,
    );
  });

  test('listen prints this organisation’s events as they come, until Ctrl-C', async () => {
    const { cli, who } = await somebody();
    const stranger = await api.person();
    const listening = cli.start(['webhook', 'listen', '--event', 'instance.created'], null);
    await until('it listens', () => listening.err().includes('Listening at'));
    await api.instance(stranger);
    const { id } = await api.instance(who);
    await raiseNotificationsOfEvents(api.db);
    await until('it is printed', () => listening.out().includes(id));
    listening.child.kill('SIGINT');
    const { code, out } = await listening.ended;
    assert.equal(code, 130);
    assert.equal(out.match(/^webhook-id: evt_\w+$/gm)?.length, 1);
    assert.match(out, /^ {2}"type": "instance\.created",$/m);
  });
});

describe('what happens', () => {
  test('notifications are listed, marked as read, and followed', async () => {
    const { cli, who } = await somebody();
    assert.equal(await cli.done('notifications'), 'Nothing unread.\n');
    await appendNotifyingEvent(api.db, who);
    await raiseNotificationsOfEvents(api.db);
    assert.match(await cli.done('notifications'), /^\S+ m?s ago +info +SSH key .*\n {22}\S/);
    const following = cli.start(['notifications', '-f', '--json'], null);
    await until(
      'it is told',
      async () => {
        // A stream begins at its opening: one that happens after it comes.
        await appendNotifyingEvent(api.db, who);
        await raiseNotificationsOfEvents(api.db);
        return following.out().includes('"ssh_key.added"');
      },
      { every_ms: 200 },
    );
    following.child.kill('SIGINT');
    assert.equal((await following.ended).code, 130);
    const first = (await following.ended).out.split('\n')[0] ?? '';
    assert.equal((JSON.parse(first) as { kind: string }).kind, 'ssh_key.added');
    assert.match(await cli.done('notifications', '--read'), /^\d+ marked as read\.\n$/);
    assert.equal(await cli.done('notifications'), 'Nothing unread.\n');
    assert.notEqual(await cli.done('notifications', '--all', '-q'), '');
  });

  test('events are listed oldest first, of one instance where asked', async () => {
    const { cli, who } = await somebody();
    const { name } = await api.instance(who);
    const other = await api.instance(who);
    await raiseNotificationsOfEvents(api.db);
    const all = (await cli.done('events')).trim().split('\n');
    assert.equal(all.length, 2);
    assert.match(
      all[0] ?? '',
      new RegExp(`^\\d\\d:\\d\\d:\\d\\d {2}instance\\.created +${name} #1 {2}by usr_`),
    );
    assert.match(all[1] ?? '', new RegExp(other.name));
    assert.equal((await cli.json<unknown[]>('events', '--instance', name)).length, 1);
  });

  test('audit lists who did what, and to which instance by its name', async () => {
    const { cli } = await somebody();
    await cli.done('key', 'create', 'ci');
    assert.match(
      await cli.done('audit'),
      /^# +AT +ACTOR +ACTION +TARGET +FROM\n1? +20\S+ +usr_\S+ +api_key\.create/,
    );
    await cli.done('create', 'web');
    assert.match(await cli.done('audit', '--limit', '1'), /instance\.create +web +\S+$/m);
    assert.match(await cli.done('audit', '--limit', '1', '--json'), /"target": "inst_/);
  });

  test('what all commands have may stand before them', async () => {
    const { cli, who } = await somebody();
    const { name } = await api.instance(who);
    assert.equal(await cli.done('-q', 'ls'), `${name}\n`);
    assert.equal(
      await cli.done('--url', api.origin, '-q', 'events', '--limit=1'),
      await cli.done('events', '-q', '--limit', '1'),
    );
    assert.match(await cli.fails(2, '--frobnicate', 'ls'), /there is no command/);
    assert.match(await cli.fails(2, '--json'), /^usage: berth COMMAND/);
  });
});

describe('doctor', () => {
  test('says what is well, and for what is not the next command; 1 if anything is wrong', async () => {
    const { cli } = await somebody();
    const ran = await cli.run(['doctor']);
    assert.equal(ran.code, 1, 'no SSH key yet');
    assert.match(ran.out, /^ok {2}server +http:\/\/127\.0\.0\.1:\d+ answers$/m);
    assert.match(ran.out, /^ok {2}ready +yes$/m);
    assert.match(ran.out, /^NO {2}SSH key +none is registered\n {4}next: berth ssh-key add$/m);
    // What the host's agent has found, not whether the device is there.
    assert.match(
      ran.out,
      /^- {3}KVM +not used: hosts emulate their VMs, which is slow\n {4}next: berth host ls, /m,
    );
    assert.match(ran.out, /^ok {2}clock +agrees with the server$/m);
    await cli.run(['ssh-key', 'add', '-'], (await import('../support/people.ts')).randomPublicKey().line);
    const well = await cli.run(['doctor', '--json']);
    assert.equal(well.code, 0, well.out);
    assert.ok((JSON.parse(well.out) as { ok: boolean | null }[]).every(({ ok }) => ok !== false));
    const away = await cli.run(['doctor', '--url', 'http://127.0.0.1:1']);
    assert.equal(away.code, 1);
    assert.match(away.out, /^- {3}KVM +\/dev\/kvm (opens; not tried yet|cannot be opened)/m);
    assert.match(away.out, /^NO {2}server +http:\/\/127\.0\.0\.1:1 does not answer\n {4}next: npm start/m);
  });
});

describe('help', () => {
  test('every command has its own, with an example that names it', async () => {
    const cli = new Cli();
    assert.match(await cli.done('help'), /^usage: berth COMMAND/);
    for (const { name, short = [], example } of COMMANDS) {
      assert.ok(
        [name, ...short].some((each) => example.includes(`berth ${each}`)),
        `${name}: ${example}`,
      );
    }
    for (const words of [
      ['help', 'create'],
      ['create', '--help'],
      ['instance', 'create', '-h'],
    ]) {
      assert.match(
        await cli.done(...words),
        /^usage: berth create NAME .*\n\nIn full: berth instance create/m,
      );
    }
    assert.match(await cli.done('version'), /^berth \d+\.\d+\.\d+\n$/);
    assert.match(
      await cli.fails(2, 'frobnicate'),
      /there is no command “frobnicate”\n {2}next: berth help\n$/,
    );
    assert.match(
      await cli.fails(2, 'webhok', 'ls'),
      /“webhok ls”\n {2}next: berth webhook ls, if that was meant/,
    );
    assert.match(await cli.fails(2, 'webhook'), /^usage:\n {2}berth webhook create URL /);
    assert.equal(await cli.done('help', 'webhook'), await cli.done('webhook', '-h'));
  });

  test('docs/cli.md says what the table of commands says', () => {
    const text = readFileSync(join(import.meta.dirname, '..', '..', 'docs', 'cli.md'), 'utf8');
    const [, written = ''] = text.split('<!-- written from src/cli/command-table.ts -->\n\n');
    assert.equal(written, reference(), 'run node src/cli/write-reference.ts');
  });
});

describe('completion', () => {
  test('knows commands, options and the names of instances', async () => {
    const { cli, who } = await somebody();
    const { name } = await api.instance(who);
    assert.equal(await cli.done('__complete', 'cre'), 'create\n');
    assert.match(await cli.done('__complete', 'webhook', ''), /^create\nls\nrm\n/);
    assert.equal(await cli.done('__complete', 'start', name.slice(0, 3)), `${name}\n`);
    assert.equal(await cli.done('__complete', 'create', 'x', '--me'), '--memory\n');
    assert.equal(await new Cli({ BERTH_URL: 'http://127.0.0.1:1' }).done('__complete', 'start', ''), '');
  });

  test('the script for bash completes in a bash', async () => {
    const { cli } = await somebody();
    const script = join(cli.home, 'completion.bash');
    writeFileSync(script, await cli.done('completion', 'bash'));
    const program = `berth() { '${join(import.meta.dirname, '..', '..', 'bin', 'berth')}' "$@"; }
      source '${script}'; COMP_WORDS=(berth webhook li); COMP_CWORD=2; _berth; echo "\${COMPREPLY[@]}"`;
    assert.equal(execFileSync('bash', ['-c', program], { env: cli.env, encoding: 'utf8' }), 'listen\n');
    assert.match(await cli.fails(2, 'completion', 'tcsh'), /bash, zsh and fish/);
  });

  test('the script for fish completes in a fish, half words and none', async () => {
    const { cli, who } = await somebody();
    const { name } = await api.instance(who);
    const script = join(cli.home, 'berth.fish');
    writeFileSync(script, await cli.done('completion', 'fish'));
    const env = { ...cli.env, PATH: `${BIN}:${cli.env['PATH']}` };
    const program = `source ${script}; complete -C 'berth webhook li'; complete -C 'berth stop '`;
    // Not synchronously: the server that it asks is in this process.
    const { stdout } = await promisify(execFile)('fish', ['-c', program], { env });
    assert.equal(stdout, `listen\n${name}\n`);
  });

  test('the script for zsh completes in a zsh, sourced and loaded by its name', async () => {
    const { cli } = await somebody();
    writeFileSync(join(cli.home, '_berth'), await cli.done('completion', 'zsh'));
    const env = { ...cli.env, PATH: `${BIN}:${cli.env['PATH']}` };
    // Outside of the line editor compadd shows what it is given, and there is nothing to register with.
    const shows = `compadd() { print -r -- "$@"; }; compdef() { print registered $@; }; words=(berth webhook li); CURRENT=3`;
    // A zsh whose owner has set up nothing.
    const bare = `source ./_berth; print $_comps[berth]`;
    assert.equal(execFileSync('zsh', ['-fic', bare], { env, cwd: cli.home, encoding: 'utf8' }), '_berth\n');
    for (const [load, wanted] of [
      ['source ./_berth; _berth', 'registered _berth berth\n-- listen\n'],
      ['fpath=(. $fpath); autoload -Uz _berth; _berth', '-- listen\n'],
    ] as const) {
      const run = execFileSync('zsh', ['-fc', `${shows}; ${load}`], { env, cwd: cli.home, encoding: 'utf8' });
      assert.equal(run, wanted);
    }
  });
});
