/** A server that lies, is silent, or is not the login's can neither change this machine nor read from it. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { chownSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { promisify } from 'node:util';
import { AS_ROOT } from '../launcher/processes.ts';
import { BERTH, Cli } from '../support/cli.ts';
import { until } from '../support/waiting.ts';

const KEY = 'berth_live_any';
const INSTANCE = { id: `inst_${'0'.repeat(26)}`, name: 'web', vm: { state: 'running' } };
const WAY = { host: '127.0.0.1', port: 22, user: 'root', known_hosts: ['[127.0.0.1]:22 ssh-ed25519 AAAA'] };

/** What was asked, and how: headers and body. */
const asked: string[] = [];
let answers: Record<string, unknown> = {};

async function note(request: IncomingMessage): Promise<void> {
  let body = '';
  for await (const chunk of request) body += chunk;
  asked.push(`${request.method} ${request.url} ${JSON.stringify(request.headers)} ${body}`);
}

const server = createServer(async (request, response) => {
  await note(request);
  const [path = ''] = (request.url ?? '').split('?');
  const part = Object.keys(answers).find((each) => path.endsWith(each));
  response.writeHead(part === undefined ? 404 : 200, { 'content-type': 'application/json' });
  response.end(JSON.stringify(part === undefined ? {} : answers[part]));
});
/** Consoles open once this is over. */
let opening: Promise<void> = Promise.resolve();
// A console that takes what comes and never says goodbye.
server.on('upgrade', async (request, socket) => {
  await opening;
  const seal = `${request.headers['sec-websocket-key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`;
  const accept = createHash('sha1').update(seal).digest('base64');
  socket.write(
    `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`,
  );
  socket.on('error', () => undefined).resume();
});
await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
after(() => {
  server.closeAllConnections();
  server.close();
});
const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;

function says(instance: Record<string, unknown>, way: Record<string, unknown> = {}): void {
  const one = { ...INSTANCE, ...instance };
  answers = {
    '/instances': { data: [one], next_cursor: null },
    [`/instances/${encodeURIComponent(one.id)}/ssh`]: { ...WAY, allowed_keys: 1, ...way },
    [`/instances/${INSTANCE.id}`]: one,
  };
}

const filesIn = ({ home }: Cli) =>
  readdirSync(home, { recursive: true, withFileTypes: true })
    .filter((each) => each.isFile())
    .map(({ name }) => name);

test('an id that is a path becomes no file, a user that is an option no words of ssh', async () => {
  const cli = new Cli({ BERTH_URL: url, BERTH_API_KEY: KEY });
  const made = join(cli.home, 'made');
  says({ id: '../../../.bashrc' }, { known_hosts: [`touch ${made}`] });
  assert.match(await cli.fails(1, 'ssh', 'web'), /not a plain address; they are not used/);
  says({}, { user: `-oProxyCommand=touch ${made}` });
  for (const command of [
    ['ssh', 'web', '--', 'word'],
    ['ssh-config', 'web'],
    ['ssh-config', '--print', 'web'],
  ]) {
    assert.match(await cli.fails(1, ...command), /not a plain address; they are not used/);
  }
  assert.deepEqual(filesIn(cli), []);
});

test('TAB runs nothing of what a server calls its instances', async () => {
  const cli = new Cli({ BERTH_URL: url, BERTH_API_KEY: KEY });
  says({ name: '$(touch made)' });
  const script = join(cli.home, 'completion.bash');
  writeFileSync(script, await cli.done('completion', 'bash'));
  const program = `berth() { '${BERTH}' "$@"; }
    source '${script}'; COMP_WORDS=(berth ssh ''); COMP_CWORD=2; _berth; echo "\${COMPREPLY[@]}"`;
  // Not synchronously: the server is in this process.
  const bash = () => promisify(execFile)('bash', ['-c', program], { env: cli.env, cwd: cli.home });
  assert.equal((await bash()).stdout, '\n');
  says({ id: '$(touch made)', name: 'a b' });
  assert.equal((await bash()).stdout, '\n');
  assert.ok(!existsSync(join(cli.home, 'made')));
  says({});
  assert.equal((await bash()).stdout, 'web\n');
});

test('JSON has nothing that a terminal acts on, and means what was said', async () => {
  const cli = new Cli({ BERTH_URL: url, BERTH_API_KEY: KEY });
  const labels = { a: '\u009b31m\u007f\u001b[0m', b: 'we\u202egpj\u{e0041}' };
  says({ labels });
  const out = await cli.done('show', 'web', '--json');
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  assert.doesNotMatch(out, /[\u0000-\u0009\u000b-\u001f\u007f-\u009f]|\p{Cf}/u);
  assert.deepEqual((JSON.parse(out) as { labels: unknown }).labels, labels);
});

test('what a server calls its instances is shown without what a terminal acts on, or what reorders it', async () => {
  const cli = new Cli({ BERTH_URL: url, BERTH_API_KEY: KEY });
  const reason = {
    code: 'vm_died',
    message: '\u001b]0;owned\u0007It \u001b[31mdied\u202e.',
    actor: 'host_1',
  };
  const disk = { generation: 0, dirty_bytes: 0, stored_bytes: 0 };
  says({ name: 'w\u001b[2Je\u202eb', vm: { state: 'failed', reason }, disk, ssh: WAY, labels: {} });
  for (const command of [['ls'], ['ls', '-q']]) {
    const out = await cli.done(...command);
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
    assert.doesNotMatch(out, /[\u0000-\u0009\u000b-\u001f\u007f-\u009f]|\p{Cf}|owned/u);
    assert.match(out, /\bweb\b/);
  }
});

test('BERTH_API_KEY goes to BERTH_URL alone, or without it to the server of this machine', async () => {
  answers = { '/instances': { data: [], next_cursor: null } };
  const mine = 'berth_live_mine';
  const sent = () => asked.filter((each) => each.includes(mine));
  const elsewhere = new Cli({ BERTH_URL: 'https://work.example', BERTH_API_KEY: mine });
  assert.match(
    await elsewhere.fails(4, 'ls', '--url', url),
    /^berth: BERTH_API_KEY is for https:\/\/work\.example; it is not sent to http.*\n {2}next: BERTH_URL=http/,
  );
  const unsaid = new Cli({ BERTH_API_KEY: mine, BERTH_DATA_DIR: '/nonexistent' });
  assert.match(await unsaid.fails(4, 'ls', '--url', url), /because BERTH_URL is not set; it is not sent to/);
  // Of a login at another server.
  const folder = join(unsaid.home, '.config', 'berth');
  mkdirSync(folder, { recursive: true });
  const work = { url, email: 'me@example', org_id: 'org_1', api_key_id: 'ak_1', api_key: 'berth_live_WORK' };
  writeFileSync(join(folder, 'config.json'), JSON.stringify({ current: 'work', profiles: { work } }));
  await unsaid.fails(4, 'ls');
  assert.deepEqual(sent(), []);
  await new Cli({ BERTH_URL: `${url}/`, BERTH_API_KEY: mine }).done('ls', '--url', url);
  assert.equal(sent().length, 1);
});

test('a typed value that URLs remove from a path is refused before it is sent', async () => {
  says({});
  const cli = new Cli({ BERTH_URL: url, BERTH_API_KEY: KEY });
  const before = asked.length;
  for (const id of ['.', '..'])
    assert.match(await cli.fails(1, 'exec', 'kill', 'web', id), /exec_id must be an id or a name/);
  assert.deepEqual(
    asked.slice(before).map((each) => each.split(' ')[0]),
    ['GET', 'GET'],
  );
});

test('a browser is opened for a web address alone', async () => {
  const opened = join(new Cli().home, 'opened');
  const browser = join(new Cli().home, 'browser');
  writeFileSync(browser, `#!/bin/sh\necho "$1" >> ${opened}\n`, { mode: 0o755 });
  const cli = new Cli({ BERTH_URL: url, BERTH_API_KEY: KEY, BROWSER: browser });
  const open = (address: string) => {
    says({});
    const port = { id: 'port_1', port: 80, access: 'public', url: address, hostname: 'a' };
    answers['/ports'] = { data: [port], next_cursor: null };
    return cli.done('port', 'open', 'web', '80');
  };
  for (const address of ['file:///etc/passwd', 'javascript:alert(1)', '--version', 'smb://a/b'])
    assert.equal(await open(address), `${address}\n`);
  assert.equal(await open('https://web.example/'), 'Opened https://web.example/\n');
  await until('it is opened', () => existsSync(opened));
  assert.equal(readFileSync(opened, 'utf8'), 'https://web.example/\n');
});

test('neither a session with sudo nor a password goes to another server than the login’s', async () => {
  const cli = new Cli({ BERTH_URL: url, BERTH_API_KEY: KEY });
  const folder = join(cli.home, '.config', 'berth');
  mkdirSync(folder, { recursive: true });
  const sudo = { session_token: 'berth_sess_WORK', cookie: 'sudo=WORK', expires_at: '2999-01-01T00:00:00Z' };
  const login = {
    url: 'https://work.example',
    email: 'me@work.example',
    org_id: 'org_1',
    api_key_id: 'ak_1',
    api_key: 'berth_live_WORK',
  };
  answers = { '/api-keys': { data: [{ id: 'ak_2', name: 'ci' }], next_cursor: null } };
  for (const work of [{ ...login, sudo }, login]) {
    const kept = JSON.stringify({ current: 'work', profiles: { work } });
    writeFileSync(join(folder, 'config.json'), kept, { mode: 0o600 });
    for (const command of [
      ['api-key', 'rotate', 'ci', '--password-stdin'],
      ['sudo', '--password-stdin'],
    ]) {
      const { code, err } = await cli.run([...command, '--url', url], 'password of WORK\n');
      assert.match(err, /the login “work” is for https:\/\/work\.example, not for http/);
      assert.equal(code, 4);
    }
    assert.equal(readFileSync(join(folder, 'config.json'), 'utf8'), kept);
  }
  assert.deepEqual(
    asked.filter((each) => each.includes('WORK')),
    [],
  );
});

test('a first login that somebody else has left in the folder is none', AS_ROOT, async () => {
  const cli = new Cli();
  const folder = join(cli.home, 'data', 'secrets');
  mkdirSync(folder, { recursive: true });
  const path = join(folder, 'first-login');
  writeFileSync(path, JSON.stringify({ url, email: 'admin@localhost', password: 'planted' }));
  chownSync(path, 65_534, 65_534);
  await cli.fails(2, 'login', '--url', url);
  assert.ok(!asked.some((each) => each.includes('planted')));
});

test('Ctrl-] ends a console whose other end is silent', { timeout: 300_000 }, async () => {
  const cli = new Cli({ BERTH_URL: url, BERTH_API_KEY: KEY });
  says({});
  answers['/vm/console/ticket'] = { ticket: 'one' };
  const upgraded = new Promise((resolve) => server.once('upgrade', resolve));
  const running = cli.onTerminal(['console', 'web']);
  await upgraded;
  await until('it is connected', () => running.out().includes('Ctrl-] ends'));
  running.child.stdin?.write('\u001d');
  assert.equal((await running.ended).code, 0);
});

test('a console is said to be connected once it is, and not while nobody hears what is typed', async () => {
  const cli = new Cli({ BERTH_URL: url, BERTH_API_KEY: KEY });
  says({});
  answers['/vm/console/ticket'] = { ticket: 'one' };
  const { promise, resolve: open } = Promise.withResolvers<void>();
  opening = promise;
  const asked = once(server, 'upgrade');
  const running = cli.onTerminal(['console', 'web']);
  await asked;
  assert.ok(!running.out().includes('Connected'), running.out());
  open();
  await until('it is connected', () => running.out().includes('Connected'));
  running.child.stdin?.write('\u001d');
  assert.equal((await running.ended).code, 0);
});

test('doctor says of something else than Berth that it is', async () => {
  const cli = new Cli({ BERTH_URL: url, BERTH_API_KEY: KEY });
  answers = { '/readyz': null };
  const { code, out } = await cli.run(['doctor']);
  assert.match(
    out,
    /^NO {2}server +\S+ answers, but is not a Berth server\n {4}next: berth login --url URL/m,
  );
  assert.doesNotMatch(out, /undefined|unknown/);
  assert.equal(code, 1);
});

test('entries of a folder whose names lead out of it are not copied', async () => {
  says({});
  const entry = {
    type: 'directory',
    size: null,
    mode: '0755',
    user: 'root',
    mtime: '2026-01-01T00:00:00.000Z',
  };
  const data = ['/srv/..', '/srv/.', '/', ''].map((path) => ({ ...entry, name: '..', path }));
  answers['/files/list'] = { data, next_cursor: null };
  const cli = new Cli({ BERTH_URL: url, BERTH_API_KEY: KEY });
  const { code, err } = await cli.run(['cp', '-r', 'web:/srv', join(cli.home, 'a/b')]);
  assert.equal(code, 1, err);
  assert.equal(err.match(/has no name of its own/g)?.length, 4, err);
  assert.deepEqual(filesIn(cli), []);
  assert.deepEqual(readdirSync(cli.home, { recursive: true }), ['a', 'a/b']);
});
