/** The Python package: what it is made of, what it needs, and its streams. Its verbs are in same-calls and bad-network. */
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { cp, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { promisify } from 'node:util';
import { blocking, generatePython } from '../../python/generate.ts';
import { apiForFile } from '../support/api.ts';
import { certificate } from '../support/certificate.ts';
import { FailingProxy } from '../support/failing-proxy.ts';
import { raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeKey } from '../support/people.ts';
import { pythonClient } from '../support/python-client.ts';
import { until } from '../support/waiting.ts';
import { webhookVectors } from '../support/webhook-vectors.ts';

const runFile = promisify(execFile);
const PROJECT = join(import.meta.dirname, '..', '..');
const SUPPORT = join(import.meta.dirname, '..', 'support');
const api = await apiForFile();
const python = await pythonClient();
const proxy = await FailingProxy.before(api.origin);
const folder = await mkdtemp(join(tmpdir(), 'berth-python-'));
after(() => rm(folder, { recursive: true, force: true }));

describe('what is written by a program', () => {
  for (const [path, text] of generatePython()) {
    test(`${path.slice(PROJECT.length + 1)} is what npm run openapi writes`, async () => {
      assert.equal(await readFile(path, 'utf8'), text, 'run npm run openapi and commit it');
    });
  }
  test('a source without its waits is the blocking shape', () => {
    const source =
      'async def all(self) -> AsyncIterator[int]:\n    async for each in await self.some():\n        yield each\n';
    const text = 'def all(self) -> Iterator[int]:\n    for each in self.some():\n        yield each\n';
    assert.ok(blocking(source).endsWith(text), blocking(source));
  });
});

describe('the wheel', () => {
  test('has the types, the version of this project, and no dependencies', async () => {
    const print = (name: string) => `print(metadata.${name})`;
    const program = `from importlib import metadata\n${print('version("berth")')}\n${print('requires("berth")')}\n${print('metadata("berth")["Requires-Python"]')}`;
    const { version } = JSON.parse(await readFile(join(PROJECT, 'package.json'), 'utf8')) as {
      version: string;
    };
    assert.equal(await python.run(['-c', program]), `${version}\nNone\n>=3.9\n`);
    const files = (await python.run(['-m', 'zipfile', '-l', python.wheel])).split('\n').slice(1);
    const names = files.flatMap((line) => line.split(/\s/)[0] || []);
    assert.ok(names.includes('berth/py.typed') && names.includes('berth/aio/_commands.py'), names.join());
    const others = names.filter((name) => !/^berth(-[\d.]+\.dist-info)?\//.test(name));
    assert.deepEqual(others, []);
  });
  test('needs nothing but the standard library', async () => {
    const program =
      'import sys, berth, berth.aio; print(*{name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names))';
    const names = (await python.run(['-c', program]))
      .split(/\s/)
      .filter((name) => !/^(berth|__.*__|)$/.test(name));
    // What Debian's Python itself loads.
    assert.deepEqual(
      names.filter((name) => !/^(sitecustomize|apport_python_hook|_distutils_hack)$/.test(name)),
      [],
    );
  });
});

test('its grammar, and what it uses of the standard library, are of Python 3.9; its types are strict', async () => {
  const source = join(folder, 'source');
  await cp(join(PROJECT, 'python'), source, { recursive: true });
  const parse =
    'import ast, pathlib, sys\nfor path in pathlib.Path(sys.argv[1]).rglob("*.py"): ast.parse(path.read_text(), feature_version=(3, 9))';
  await python.run(['-c', parse, source]);
  // Its settings are in pyproject.toml: strict, for 3.9.
  const checked = runFile('/usr/bin/mypy', [], {
    cwd: source,
    env: { PATH: '/usr/bin:/bin', MYPYPATH: 'src' },
  });
  const { stdout } = await checked.catch((error: { stdout: string }) => assert.fail(error.stdout));
  assert.match(stdout, /^Success/);
});

test('a program that uses it gets its types', async () => {
  const program = join(folder, 'typed.py');
  await writeFile(
    program,
    [
      'import berth, berth.aio',
      'client = berth.Berth.from_env()',
      'reveal_type(client.instances.get("x")["vm"]["state"])',
      'reveal_type(client.vm("x").exec("true").stdout)',
      'for key in client.list(berth.operations.list_api_keys): reveal_type(key["prefix"])',
      'async def run(other: berth.aio.Berth) -> None: reveal_type((await other.vm("x").get())["boot"])',
      'client.instances.get(7)',
    ].join('\n'),
  );
  const venv = (await python.run(['-c', 'import sys; print(sys.executable)'])).trim();
  const args = ['--strict', '--python-executable', venv, '--cache-dir', join(folder, 'cache'), program];
  const { stdout } = await runFile('/usr/bin/mypy', args).catch((error: { stdout: string }) => error);
  const revealed = [...stdout.matchAll(/Revealed type is "(.*)"/g)].map(([, type = '']) =>
    type.replaceAll('builtins.', ''),
  );
  assert.match(revealed.shift() ?? '', /^Union\[Literal\['starting'\]/);
  assert.deepEqual(revealed, ['str', 'str', 'int'], stdout);
  assert.match(stdout, /typed\.py:7: error: Argument 1 to "get".*\n.*Found 1 error/);
});

test('it judges webhooks as the TypeScript client does', async () => {
  const vectors = webhookVectors();
  const verdicts = JSON.parse(
    await python.run([join(SUPPORT, 'verify_webhooks.py')], {}, JSON.stringify(vectors)),
  );
  assert.deepEqual(
    vectors.map(({ does }, index) => `${does}: ${verdicts[index]}`),
    vectors.map(({ does, is_genuine }) => `${does}: ${is_genuine}`),
  );
});

test('it speaks TLS, and trusts the certificates that it is given, else those of the system', async (t) => {
  const { key, cert } = await certificate(t, 'localhost');
  const path = join(folder, 'cert.pem');
  await writeFile(path, cert);
  // In many pieces.
  const name = 'x'.repeat(1_000_000);
  const server = createServer({ key, cert }, (_request, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.write('{"data":[{"name":"');
    response.end(`${name}"}],"next_cursor":null}`);
  });
  await new Promise<void>((listening) => server.listen(0, '127.0.0.1', listening));
  t.after(() => server.close());
  const url = `https://localhost:${(server.address() as AddressInfo).port}`;
  const out = await python.run([join(SUPPORT, 'list_images.py'), path], { BERTH_URL: url });
  assert.equal(out, `${name}\n${name}\nTrue not trusted\nTrue not trusted\n`);
});

for (const shape of ['sync', 'async']) {
  test(`${shape}: events arrive live, and a cut connection loses or repeats none; a cancelled task ends its connection`, async () => {
    const who = await api.person();
    const { key } = await makeKey(api.db, who, '*');
    proxy.reset();
    const program = spawn(python.executable, ['-I', join(SUPPORT, 'follow_events.py'), shape], {
      env: { BERTH_URL: proxy.url, BERTH_API_KEY: key },
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    after(() => program.kill('SIGKILL'));
    let said = '';
    program.stdout.on('data', (data) => {
      said += data;
    });
    const lines = () => said.split('\n').filter((line) => line !== '');
    await until('it follows', () => lines().includes('open'));
    const ids: string[] = [];
    const happens = async () => {
      // JSON leaves this as it is.
      ids.push((await api.instance(who, { labels: { note: 'a\u2028b' } })).id);
      await raiseNotificationsOfEvents(api.db);
    };
    const told = () => lines().filter((line) => line.startsWith('inst_'));
    await happens();
    await until('it tells the first', () => told().length === 1);
    proxy.cut();
    await happens();
    await happens();
    await until('it tells all', () => told().length === 3);
    assert.deepEqual(told(), ids);
    if (shape === 'sync') return;
    program.stdin.write('\n');
    await until('it is cancelled', () => lines().at(-1) === 'cancelled');
    await until('its connection has ended', () => proxy.seen.every(({ closed }) => closed));
    assert.equal(program.exitCode, null);
    program.stdin.write('\n');
  });
}
