/** The unmodified npm package `e2b` against Berth, by the adapter: the core loop of docs/e2b.md. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { request } from 'node:http';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { after, before, describe, test } from 'node:test';
import { promisify } from 'node:util';
import {
  AuthenticationError,
  CommandExitError,
  FileNotFoundError,
  NotFoundError,
  Sandbox,
  SandboxError,
  TimeoutError,
} from 'e2b';
import { E2bAdapter } from '../support/e2b-adapter.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import { borrowInstallation, returnInstallation } from '../support/shared-installation.ts';
import { until, untilWorks } from '../support/waiting.ts';

const PROJECT = join(import.meta.dirname, '..', '..');
const SCOPE = 'instances:read instances:write vm:read vm:write';
/** Answers with the request's line; or, to an upgrade, echoes lines. */
const SERVER = `perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new(LocalPort => 3000, Listen => 5, ReuseAddr => 1) or die;
  while (my $c = $s->accept) { next if fork; my $l = <$c>; my $up = 0; while (my $h = <$c>) { $up = 1 if $h =~ /^upgrade:/i; last if $h =~ /^\\r?$/ }
  if ($up) { print $c "HTTP/1.1 101 Up\\r\\nUpgrade: echo\\r\\nConnection: Upgrade\\r\\n\\r\\n"; $c->flush; while (<$c>) { print $c "= $_"; $c->flush } }
  else { print $c "HTTP/1.0 200 OK\\r\\n\\r\\nsaw $l" } close $c; exit }'`;

describe('the npm package e2b', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'berth-e2b-'));
  let berth: Installation;
  let adapter: E2bAdapter;
  let options: { apiUrl: string; sandboxUrl: string; apiKey: string };
  let sandbox: Sandbox;

  const keyOf = async (scope: string) => {
    const body = { name: `e2b ${scope}`, scope };
    return (await berth.client.expect<{ key: string }>(201, 'POST', '/v1/api-keys', body)).key;
  };

  /** A request to a host name, as browsers resolve it. */
  const get = (path: string, name: string, more = {}) =>
    new Promise<string>((resolve, reject) => {
      // Browsers resolve the name to this machine.
      const sent = request(
        { host: '127.0.0.1', port: adapter.port, path, headers: { ...more, host: name } },
        (answer) => {
          text(answer).then((body) => resolve(`${answer.statusCode} ${body}`), reject);
        },
      );
      sent.on('error', reject).end();
    });

  before(async () => {
    berth = await borrowInstallation();
    adapter = await E2bAdapter.start(berth.origin, join(folder, 'key'), await keyOf(SCOPE));
    options = { apiUrl: adapter.url, sandboxUrl: adapter.url, apiKey: await keyOf(SCOPE) };
    const settings = {
      ...options,
      metadata: { env: 'test', 'user/name': 'Ada L' },
      envs: { GREETING: "it's me" },
    };
    sandbox = await Sandbox.create(settings);
  });
  after(async () => {
    await adapter?.kill();
    rmSync(folder, { recursive: true, force: true });
    await returnInstallation();
  });

  test('a command returns its output, streams it, and has its directory, variables and user', async () => {
    const streamed = { out: '', err: '' };
    const result = await sandbox.commands.run('echo "$GREETING $ONE"; pwd; id -un; echo wrong >&2', {
      envs: { ONE: '1' },
      cwd: '/tmp',
      onStdout: (data) => {
        streamed.out += data;
      },
      onStderr: (data) => {
        streamed.err += data;
      },
    });
    assert.deepEqual(
      [result.exitCode, result.stdout, result.stderr],
      [0, "it's me 1\n/tmp\nuser\n", 'wrong\n'],
    );
    assert.deepEqual(streamed, { out: result.stdout, err: result.stderr });
    assert.equal(
      (await sandbox.commands.run('echo $GREETING', { envs: { GREETING: 'own' } })).stdout,
      'own\n',
    );
    assert.equal((await sandbox.commands.run('pwd; id -un', { user: 'root' })).stdout, '/root\nroot\n');
    assert.equal((await sandbox.commands.run('pwd')).stdout, '/home/user\n');
    const much = await sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x");
    assert.equal(much.stdout, 'x'.repeat(3_000_000));
  });

  test('a stream arrives while its command runs', async () => {
    let release = () => {};
    const first = new Promise<void>((resolve) => {
      release = resolve;
    });
    const command = await sandbox.commands.run('echo begun; read line; echo "got $line"', {
      background: true,
      stdin: true,
      onStdout: release,
    });
    await first;
    await command.sendStdin('an answer\n');
    assert.equal((await command.wait()).stdout, 'begun\ngot an answer\n');
  });

  test('failures are those of the package: exit codes, signals, timeouts, what is not there', async () => {
    await assert.rejects(sandbox.commands.run('echo no >&2; exit 3'), (error) => {
      assert.ok(error instanceof CommandExitError);
      assert.deepEqual([error.exitCode, error.stderr, error.error], [3, 'no\n', 'exit status 3']);
      return true;
    });
    await assert.rejects(sandbox.commands.run('kill -9 $$'), (error) => {
      assert.ok(error instanceof CommandExitError);
      assert.deepEqual([error.exitCode, error.error], [-1, 'signal: SIGKILL']);
      return true;
    });
    await assert.rejects(sandbox.commands.run('exec sleep 1000', { timeoutMs: 1_500 }), TimeoutError);
    await until('the command ends at its timeout', async () => (await sandbox.commands.list()).length === 0);
    await assert.rejects(sandbox.files.read('/not/there'), FileNotFoundError);
    await assert.rejects(sandbox.files.list('/not/there'), FileNotFoundError);
    await assert.rejects(Sandbox.connect('0'.repeat(26), options), NotFoundError);
    assert.equal(await Sandbox.kill('0'.repeat(26), options), false);
    await assert.rejects(sandbox.getMetrics(), SandboxError);
  });

  test('background commands are listed, connected to, given input and killed', async () => {
    const command = await sandbox.commands.run('while read l; do echo "= $l"; done; exec sleep 1000', {
      background: true,
      stdin: true,
      timeoutMs: 0,
    });
    const [listed] = await sandbox.commands.list();
    assert.equal(listed?.pid, command.pid);
    assert.equal(listed?.cmd, '/bin/bash');
    let seen = '';
    const connected = await sandbox.commands.connect(command.pid, {
      timeoutMs: 0,
      onStdout: (data) => {
        seen += data;
      },
    });
    await sandbox.commands.sendStdin(command.pid, 'one\n');
    await until('both see the output', () => seen === '= one\n' && command.stdout === seen);
    await sandbox.commands.closeStdin(command.pid);
    await command.disconnect();
    assert.equal(await sandbox.commands.kill(command.pid), true);
    await assert.rejects(connected.wait(), CommandExitError);
    assert.equal(await sandbox.commands.kill(command.pid), false);
    assert.deepEqual(await sandbox.commands.list(), []);
  });

  test('a terminal has a size, takes input and answers', async () => {
    let shown = '';
    const terminal = await sandbox.pty.create({
      cols: 91,
      rows: 30,
      timeoutMs: 0,
      onData: (data) => {
        shown += Buffer.from(data).toString();
      },
    });
    await sandbox.pty.sendInput(terminal.pid, Buffer.from('stty size\n'));
    await until('the size is shown', () => shown.includes('30 91'));
    await sandbox.pty.resize(terminal.pid, { cols: 92, rows: 31 });
    await sandbox.pty.sendInput(terminal.pid, Buffer.from('stty size; exit\n'));
    await until('the new size is shown', () => shown.includes('31 92'));
    assert.equal((await terminal.wait()).exitCode, 0);
  });

  test('files are written, read, listed, moved and removed, as the user', async () => {
    const { files } = sandbox;
    const odd = 'a folder/100% & ü.txt';
    assert.equal((await files.write(odd, 'grüße')).path, `/home/user/${odd}`);
    assert.equal(await files.read(`/home/user/${odd}`), 'grüße');
    assert.equal((await sandbox.commands.run("ls '/home/user/a folder'")).stdout, '100% & ü.txt\n');
    const bytes = new Uint8Array(300_000).map((_, at) => at % 251);
    await files.write([
      { path: 'set/one', data: bytes.buffer },
      { path: 'set/empty', data: '' },
    ]);
    assert.deepEqual(await files.read('set/one', { format: 'bytes' }), bytes);
    assert.equal(await files.read('set/empty'), '');
    await files.write('streamed', new Blob(['by stream']).stream());
    assert.equal(await new Response(await files.read('streamed', { format: 'stream' })).text(), 'by stream');
    assert.equal(await files.makeDir('set/deep/er'), true);
    assert.equal(await files.makeDir('set/deep/er'), false);
    const names = async (depth: number) =>
      (await files.list('set', { depth })).map(({ name, type }) => `${name} ${type}`).sort();
    assert.deepEqual(await names(1), ['deep dir', 'empty file', 'one file']);
    assert.deepEqual(await names(2), ['deep dir', 'empty file', 'er dir', 'one file']);
    const { owner, permissions, size, mode, path } = await files.getInfo('set/one');
    assert.deepEqual(
      [owner, permissions, size, mode, path],
      ['user', '-rw-r--r--', 300_000, 0o644, '/home/user/set/one'],
    );
    assert.equal((await files.rename('set/one', 'other/two')).path, '/home/user/other/two');
    assert.deepEqual([await files.exists('set/one'), await files.exists('other/two')], [false, true]);
    await files.remove('set');
    assert.equal(await files.exists('set'), false);
    await assert.rejects(files.rename('set', 'elsewhere'), FileNotFoundError);
    await assert.rejects(files.remove('/etc/hostname'), /ermission denied/);
  });

  test('getHost names a port of the guest', async () => {
    await sandbox.commands.run(SERVER, { background: true, timeoutMs: 0 });
    const host = sandbox.getHost(3000);
    assert.equal(host, `3000-${sandbox.sandboxId}.localhost:${adapter.port}`);
    const answer = await untilWorks('the server answers', async () => {
      const found = await get('/a?b=1', host);
      assert.match(found, /^200 /);
      return found;
    });
    assert.equal(answer, '200 saw GET /a?b=1 HTTP/1.1\r\n');
    const upgrade = { connection: 'upgrade', upgrade: 'echo', host };
    const sent = request({ host: '127.0.0.1', port: adapter.port, headers: upgrade }).end();
    const [, socket] = (await once(sent, 'upgrade')) as [unknown, Socket];
    socket.write('through\n');
    assert.equal(String((await once(socket, 'data'))[0]), '= through\n');
    socket.destroy();
    assert.match(await get('/', sandbox.getHost(3999)), /^502 /);
    assert.match(await get('/', `3000-${'0'.repeat(26)}.localhost`), /^502 /);
  });

  test('a sandbox is listed and described, with its metadata and its end', async () => {
    const of = async (query: object) =>
      (await Sandbox.list({ ...options, query }).nextItems()).map(({ sandboxId }) => sandboxId);
    assert.deepEqual(await of({ metadata: { 'user/name': 'Ada L' } }), [sandbox.sandboxId]);
    assert.deepEqual(await of({ metadata: { env: 'prod' } }), []);
    assert.deepEqual(await of({ state: ['paused'] }), []);
    await sandbox.setTimeout(3_600_000);
    const info = await sandbox.getInfo();
    assert.deepEqual(info.metadata, { env: 'test', 'user/name': 'Ada L' });
    assert.deepEqual([info.state, info.templateId], ['running', 'base']);
    assert.ok(info.endAt.getTime() > Date.now() + 3_000_000);
  });

  test('the access token of a sandbox opens no other, and the scopes of the API key apply', async () => {
    const other = Object.assign(Object.create(Sandbox.prototype), sandbox) as Sandbox & {
      envdAccessToken: string;
    };
    const headers = { 'e2b-sandbox-id': '0'.repeat(26), 'x-access-token': other.envdAccessToken };
    assert.equal((await fetch(`${adapter.url}/health`, { headers })).status, 401);
    headers['e2b-sandbox-id'] = sandbox.sandboxId;
    assert.equal((await fetch(`${adapter.url}/health`, { headers })).status, 204);
    assert.equal(
      (await fetch(`${adapter.url}/health`, { headers: { ...headers, 'x-access-token': 'x' } })).status,
      401,
    );
    const token = { 'x-access-token': other.envdAccessToken };
    const at = `49983-${sandbox.sandboxId}.example.org`;
    assert.deepEqual(
      [await get('/health', at, token), await get('/health', at)].map((found) => found.slice(0, 3)),
      ['204', '401'],
    );
    const unknown = { ...options, apiKey: 'not-a-key' };
    await assert.rejects(Sandbox.create(unknown), AuthenticationError);
    const reading = { ...options, apiKey: await keyOf('instances:read vm:read') };
    assert.equal((await Sandbox.getInfo(sandbox.sandboxId, reading)).state, 'running');
    await assert.rejects(Sandbox.kill(sandbox.sandboxId, reading), /403/);
  });

  test('a pause keeps a file and a command; connect resumes, also after a restart of the adapter', async () => {
    await sandbox.files.write('kept', 'by the pause');
    const { pid } = await sandbox.commands.run('read line; echo "$line"', {
      background: true,
      stdin: true,
      timeoutMs: 0,
    });
    assert.equal(await sandbox.pause(), true);
    assert.equal(await sandbox.pause(), false);
    assert.equal(await sandbox.isRunning(), false);
    assert.equal((await sandbox.getInfo()).state, 'paused');
    await assert.rejects(sandbox.files.read('kept'), TimeoutError);
    await adapter.kill();
    await adapter.start();
    const again = await Sandbox.connect(sandbox.sandboxId, options);
    assert.equal(await again.isRunning(), true);
    assert.equal(await again.files.read('kept'), 'by the pause');
    const command = await again.commands.connect(pid, { timeoutMs: 0 });
    await again.commands.sendStdin(pid, 'still here\n');
    assert.equal((await command.wait()).stdout, 'still here\n');
    // Its key outlived the restart, and so did this access token.
    assert.equal((await sandbox.commands.run('echo same')).stdout, 'same\n');
  });

  test('a template is an instance with a label, which is forked', async () => {
    const id = `inst_${sandbox.sandboxId}`;
    await sandbox.files.write('from-template', 'yes');
    await berth.client.expect(200, 'POST', `/v1/instances/${id}/vm/flush`);
    const { labels } = await berth.client.expect<{ labels: Record<string, string> }>(
      200,
      'GET',
      `/v1/instances/${id}`,
    );
    await berth.client.expect(200, 'PATCH', `/v1/instances/${id}`, {
      labels: { ...labels, 'e2b-template': 'mine' },
    });
    const forked = await Sandbox.create('mine', {
      ...options,
      timeoutMs: 3_600_000,
      lifecycle: { onTimeout: 'pause' },
    });
    assert.notEqual(forked.sandboxId, sandbox.sandboxId);
    assert.equal(await forked.files.read('from-template'), 'yes');
    assert.equal((await forked.getInfo()).templateId, 'mine');
    assert.deepEqual((await forked.getInfo()).metadata, {});
    await assert.rejects(Sandbox.create('unknown', options), /no template unknown/);
    await assert.rejects(sandbox.kill(), /is the template mine/);
    await berth.client.expect(200, 'PATCH', `/v1/instances/${id}`, { labels });
    // The end of its time pauses it, as was asked for.
    await forked.setTimeout(1_000);
    await until('it is paused', async () => (await forked.getInfo()).state === 'paused');
    await forked.connect({ timeoutMs: 3_600_000 });
    assert.equal(await forked.isRunning(), true);
    // An end that passes while no adapter runs comes once one does, without any use of the sandbox.
    await adapter.kill();
    const path = `/v1/instances/inst_${forked.sandboxId}`;
    const over = {
      'e2b-sandbox': 'mine',
      'e2b-ends-at': new Date(0).toISOString(),
      'e2b-on-timeout': 'kill',
    };
    await berth.client.expect(200, 'PATCH', path, { labels: over });
    await adapter.start();
    await until('it is gone', async () => {
      const { data } = await berth.client.expect<{ data: { id: string }[] }>(200, 'GET', '/v1/instances');
      return data.every(({ id: each }) => path !== `/v1/instances/${each}`);
    });
    assert.equal(await forked.kill(), false);
  });

  test('the program of docs/e2b.md runs with the three variables that it names', async () => {
    const program =
      /^```js\n(.*?)^```/ms.exec(readFileSync(join(PROJECT, 'docs', 'e2b.md'), 'utf8'))?.[1] ?? '';
    const env = { E2B_API_KEY: options.apiKey, E2B_API_URL: adapter.url, E2B_SANDBOX_URL: adapter.url };
    const args = ['--input-type=module', '--eval', program];
    const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: PROJECT, env });
    assert.match(stdout, /^Hello from e2b-[0-9a-f]{16}\n/);
  });

  test('kill deletes the instance', async () => {
    assert.equal(await sandbox.kill(), true);
    assert.equal(await sandbox.kill(), false);
    assert.equal(await sandbox.isRunning(), false);
    await assert.rejects(sandbox.files.read('kept'), TimeoutError);
    await assert.rejects(sandbox.commands.run('true'), SandboxError);
    assert.doesNotMatch(adapter.printed, new RegExp(options.apiKey));
  });
});
