/** The grammar of the command line: names, arguments, options, lists, help and completion. */
import assert from 'node:assert/strict';
import { execFile, execFileSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { promisify } from 'node:util';
import { COMMANDS } from '../../src/cli/command-table.ts';
import { apiForFile } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeGenerations } from '../support/generations.ts';
import { makeKey, type Person } from '../support/people.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const BIN = join(import.meta.dirname, '..', '..', 'bin');

async function somebody(): Promise<{ cli: Cli; who: Person }> {
  const who = await api.person();
  const { key } = await makeKey(api.db, who, '*');
  return { cli: new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key }), who };
}

describe('names', () => {
  test('the verbs of other tools work, for every noun', async () => {
    const { cli, who } = await somebody();
    const { name } = await api.instance(who);
    for (const words of [['list'], ['instance', 'list']])
      assert.equal(await cli.done(...words, '-q'), `${name}\n`);
    assert.match(await cli.done('status', name), new RegExp(`^name +${name}\n`));
    assert.equal(await cli.done('rename', name, 'www'), `Renamed ${name} to www.\n`);
    assert.match(await cli.fails(2, 'destroy', 'www'), /next: berth destroy www --yes\n/);
    await cli.done('api-key', 'create', 'ci');
    assert.equal(await cli.done('api-key', 'delete', 'ci'), 'Revoked ci.\n');
    assert.match(await cli.done('reboot', '--help'), /^usage: berth restart NAME/m);
    assert.match(await cli.done('help', 'snapshot'), /^usage: berth flush NAME/m);
  });

  test('an unknown command, instance or option gets the nearest one as a suggestion', async () => {
    const { cli } = await somebody();
    await cli.done('create', 'web-server');
    const unknown = await cli.fails(3, 'show', 'web-sevrer');
    assert.match(unknown, /called web-sevrer\.\n {2}did you mean web-server\?\n {2}next: berth ls\n$/);
    assert.doesNotMatch(await cli.fails(3, 'show', 'something-else'), /did you mean/);
    await cli.done('create', 'web');
    assert.match(await cli.fails(3, 'show', 'wbe'), /did you mean web\?/);
    assert.match(await cli.fails(2, 'strat', 'web'), /“strat web”\. Did you mean berth start\?/);
    assert.match(await cli.fails(2, 'lst'), /Did you mean berth list\?/);
    assert.match(await cli.fails(2, 'ps'), /no command “ps”\. Did you mean berth ls\?/);
    assert.match(await cli.fails(2, 'key', 'ls'), /Did you mean berth ssh-key or api-key\?/);
    assert.doesNotMatch(await cli.fails(2, 'constructor'), /[Dd]id you mean/);
    assert.match(
      await cli.fails(2, 'webhook', 'lst'),
      /Did you mean berth webhook ls\?\n {2}next: berth help webhook/,
    );
    assert.doesNotMatch(await cli.fails(2, 'generation', 'rm', 'web', '1'), /Did you mean/);
    // A verb of other nouns: never the other noun.
    assert.match(await cli.fails(2, 'port', 'create', 'web', '80'), /Did you mean berth port add\?/);
    assert.match(await cli.fails(2, 'webhook', 'add', 'x'), /Did you mean berth webhook create\?/);
    assert.match(await cli.fails(2, 'secret', 'new', 'web', 'A'), /Did you mean berth secret set\?/);
    assert.doesNotMatch(await cli.fails(2, 'port', 'help'), /[Dd]id you mean/);
    assert.match(await cli.fails(2, 'create', 'x', '--memroy', '1g'), /Did you mean --memory\?/);
  });
});

describe('arguments', () => {
  test('an extra one is an error that names it', async () => {
    const cli = new Cli();
    for (const words of [
      ['version', 'surplus'],
      ['help', 'create', 'surplus'],
      ['ls', 'surplus'],
      ['user', 'ls', 'surplus'],
    ])
      assert.match(await cli.fails(2, ...words), /berth: unexpected argument “surplus”\n/);
  });

  test('errors of the API name options and their units', async () => {
    const { cli } = await somebody();
    const memory = await cli.fails(2, 'create', 'web', '--memory', '1');
    assert.match(memory, /^berth: --memory must be at least 128 MiB\n/);
    const idle = await cli.fails(2, 'create', 'web', '--idle-timeout', '5s');
    assert.match(idle, /^berth: --idle-timeout must be at least 1m\n/);
    await cli.done('create', 'web', '--disk', '20');
    assert.match(await cli.fails(2, 'set', 'web', '--disk', '10'), /^berth: --disk: a disk only grows/);
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

describe('lists', () => {
  test('have the chosen columns, as a table, CSV or JSON', async () => {
    const { cli } = await somebody();
    await cli.done('create', 'web', '--memory', '1g');
    assert.equal(await cli.done('ls', '--columns', 'memory,NAME'), 'MEMORY  NAME\n1 GiB   web\n');
    assert.match(
      await cli.done('ls', '--columns', 'name,memory,created', '--format', 'csv'),
      /^name,memory,created\nweb,1 GiB,|^name,memory,created\nweb,1073741824,20\S+Z\n$/,
    );
    await cli.done('set', 'web', '--label', 'role=front', '--label', 'team=a');
    assert.match(
      await cli.done('ls', '--columns', 'name,ssh,labels'),
      /^web +127\.[\d.]+:\d+ +role=front team=a$/m,
    );
    const json = await cli.done('ls', '--format', 'json', '--columns', 'name,state');
    assert.deepEqual(JSON.parse(json), [{ name: 'web', state: 'stopped' }]);
    assert.equal(await cli.done('webhook', 'ls', '--format', 'json'), '[]\n');
  });

  test('an unknown column, or columns of --json or -q, are refused', async () => {
    const { cli } = await somebody();
    assert.match(await cli.fails(2, 'ls', '--columns', 'nmae'), /no column nmae\. Did you mean name\?/);
    assert.match(await cli.fails(2, 'ls', '--columns', 'name', '--json'), /--format json has the columns\n/);
    assert.match(
      await cli.fails(2, 'ls', '--format', 'csv', '-q'),
      /--quiet excludes --columns and --format\n/,
    );
    assert.match(await cli.fails(2, 'ls', '--format', 'xml'), /--format takes table, csv or json, not xml\n/);
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
      /“webhok ls”\. Did you mean berth webhook ls\?\n {2}next: berth help\n$/,
    );
    assert.match(await cli.fails(2, 'webhook'), /^usage:\n {2}berth webhook create URL /);
    assert.equal(await cli.done('help', 'webhook'), await cli.done('webhook', '-h'));
  });

  test('the overview is one screen, and help all has a line for every command', async () => {
    const cli = new Cli();
    const lines = (await cli.done('--help')).split('\n');
    assert.ok(lines.length <= 50, `${lines.length} lines`);
    assert.match(lines[2] ?? '', /^Most used$/);
    const all = await cli.done('help', 'all');
    for (const { name, short: [shortest = name] = [] } of COMMANDS) {
      assert.match(all, new RegExp(`^ {2}${shortest}( |$)`, 'm'));
    }
  });
});

/** A completion gives up after a second, so a busy machine is asked again until it completes something. */
const something = (complete: () => Promise<string>) =>
  until('something is completed', async () => {
    const text = await complete();
    return text.trim() !== '' && text;
  });

describe('completion', () => {
  test('knows commands, options and the names of instances', async () => {
    const { cli, who } = await somebody();
    const { name } = await api.instance(who);
    assert.equal(await cli.done('__complete', 'cre'), 'create\n');
    assert.match(await cli.done('__complete', 'webhook', ''), /^create\nls\nshow\n/);
    assert.equal(await something(() => cli.done('__complete', 'start', name.slice(0, 3))), `${name}\n`);
    assert.equal(await cli.done('__complete', 'create', 'x', '--me'), '--memory\n');
    assert.equal(await cli.done('__complete', 'metrics', name, '--range', '2'), '24h\n');
    assert.equal(await new Cli({ BERTH_URL: 'http://127.0.0.1:1' }).done('__complete', 'start', ''), '');
  });

  test('knows what each argument and each option is', async () => {
    const { cli, who } = await somebody();
    const { name, id } = await api.instance(who);
    await makeGenerations(api.db, id, 2);
    await cli.done('api-key', 'create', 'deploy');
    await cli.done('api-key', 'create', 'name with spaces');
    const next = (...words: string[]) => cli.done('__complete', ...words);
    const some = (...words: string[]) => something(() => next(...words));
    assert.equal(await some('restore', name, ''), '2\n1\n');
    assert.equal(await some('fork', name, 'x', '--generation', ''), '2\n1\n');
    assert.equal(await some('api-key', 'rm', 'dep'), 'deploy\n');
    await cli.done('api-key', 'create', 'hostile $(touch x)');
    assert.match(
      await some('api-key', 'rm', ''),
      /^ak_\w+\nname with spaces\ndeploy\n/,
      'an id where a shell would run the name',
    );
    assert.equal(await some('api-key', 'rm', 'name\\ wi'), 'name with spaces\n');
    assert.equal(await some('ls', '--state', 'run'), 'running\n');
    assert.equal(await some('ls', '--state=run'), '--state=running\n');
    assert.equal(await some('ls', '--columns', 's'), 'state\nsaved\nssh\n');
    assert.equal(await some('generations', name, '--columns', 'name,cr'), 'name,created\n');
    assert.equal(
      await next('instance', 'ssh-keys', name, '--none', '--columns', 'na'),
      '',
      'nothing changes',
    );
    assert.equal((await cli.json<{ mode: string }>('instance', 'ssh-keys', name)).mode, 'account');
    assert.equal(await some('notification', 'mail', 'vm.f'), 'vm.failed\n');
    assert.equal(await some('events', '--actor', 'op'), 'operator\n');
    await cli.done('egress', name, 'allow', 'a.example.com');
    assert.equal(await some('egress', name, 'remove', ''), 'a.example.com\n');
    assert.equal(await next('ls', '--format', ''), 'table\ncsv\njson\n');
    assert.equal(await next('create', 'x', '--user-data', ''), ':files\n');
    assert.equal(await some('ssh-key', 'add', './'), ':files\n');
    assert.equal(await next('backup', ''), ':folders\n');
    assert.equal(await some('completion', 'f'), 'fish\n');
    assert.equal(await next('start', name, name.slice(0, 2)), '', 'each name once');
    assert.equal(await next('rename', name, ''), '');
    assert.equal(await next('exec', name, 'ls', '--ti'), '', "the guest's own words");
    assert.equal(await some('help', 'webhook', 'p'), 'ping\n');
    assert.equal(await some('--profile', 'x', '-q', 'webhook', 'li'), 'listen\n');
    assert.equal(await some('audit', 'v'), 'verify\n', 'a command that begins the name of another');
  });

  test('the script for bash completes in a bash: files, addresses, values after =, and names with spaces', async () => {
    const { cli } = await somebody();
    await cli.done('api-key', 'create', 'name with spaces');
    const script = join(cli.home, 'completion.bash');
    writeFileSync(script, await cli.done('completion', 'bash'));
    /** As readline calls it at the end of `line`, which it has split into words. */
    const completed = async (line: string, words: readonly string[]) => {
      const quoted = words.map((word) => `'${word}'`).join(' ');
      const program = `source '${script}'; compopt() { echo "compopt $*"; }
        COMP_LINE='${line}'; COMP_POINT=\${#COMP_LINE}; COMP_WORDS=(${quoted}); COMP_CWORD=${words.length - 1}
        _berth; printf '%s\\n' "\${COMPREPLY[@]}"`;
      const env = { ...cli.env, PATH: `${BIN}:${cli.env['PATH']}` };
      // Not synchronously: the server that it asks is in this process.
      return (await promisify(execFile)('bash', ['-c', program], { env })).stdout;
    };
    assert.equal(await completed('berth webhook li', ['berth', 'webhook', 'li']), 'listen\n');
    assert.equal(
      await completed('berth ssh-key add ', ['berth', 'ssh-key', 'add', '']),
      'compopt -o default\n\n',
    );
    assert.equal(await completed('berth ls --state=ru', ['berth', 'ls', '--state', '=', 'ru']), 'running\n');
    assert.equal(
      await something(() => completed('berth api-key rm name', ['berth', 'api-key', 'rm', 'name'])),
      'name\\ with\\ spaces\n',
    );
    await cli.done('api-key', 'create', 'ada@laptop');
    assert.equal(
      await completed('berth api-key rm ada@l', ['berth', 'api-key', 'rm', 'ada', '@', 'l']),
      'laptop\n',
    );
    assert.match(await cli.fails(2, 'completion', 'tcsh'), /SHELL is bash, zsh or fish, not tcsh/);
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
