/** The package that `npm pack` makes, in an empty folder, without any registry: installed, type-checked, used. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { promisify } from 'node:util';
import { apiForFile } from '../support/api.ts';
import { makeKey } from '../support/people.ts';
import { until } from '../support/waiting.ts';

const run = promisify(execFile);
const PROJECT = join(import.meta.dirname, '..', '..');
const BIN = join(PROJECT, 'node_modules', '.bin');
const api = await apiForFile();
const folder = await mkdtemp(join(tmpdir(), 'berth-client-'));
after(() => rm(folder, { recursive: true, force: true }));

/** The example of docs/client.md, to the letter. */
const example = /```ts\n\/\/ example\.ts\n(.*?)```/s.exec(
  await readFile(join(PROJECT, 'docs', 'client.md'), 'utf8'),
)?.[1];

test('npm pack makes a package of plain JavaScript and types, without dependencies', async () => {
  await run('npm', ['pack', '--pack-destination', folder], { cwd: join(PROJECT, 'client') });
  const [tarball = ''] = await readdir(folder);
  assert.match(tarball, /^berth-client-\d+\.\d+\.\d+\.tgz$/);
  const { stdout } = await run('tar', ['-tzf', join(folder, tarball)]);
  const files = stdout.trim().split('\n').sort();
  assert.ok(files.includes('package/dist/berth.js') && files.includes('package/dist/berth.d.ts'));
  assert.deepEqual(
    files.filter((path) => !/^package\/(package\.json|README\.md|dist\/[a-z-]+\.(js|d\.ts))$/.test(path)),
    [],
  );
});

test('installed in an empty folder, the documented example passes the type checker and runs', async () => {
  assert.ok(example, 'docs/client.md has an example');
  const [tarball = ''] = await readdir(folder);
  await writeFile(join(folder, 'package.json'), '{"name":"try","version":"1.0.0","type":"module"}');
  await run('npm', ['install', '--offline', '--no-audit', '--no-fund', `./${tarball}`], { cwd: folder });
  await writeFile(join(folder, 'example.ts'), example);
  const lib = 'es2024,esnext.disposable,dom,dom.iterable,dom.asynciterable';
  const options = ['--strict', '--module', 'nodenext', '--target', 'es2022', '--types', '', '--lib', lib];
  await run(join(BIN, 'tsc'), [...options, '--ignoreConfig', 'example.ts'], { cwd: folder }).catch(
    (error: { stdout: string }) => assert.fail(error.stdout),
  );
  const who = await api.person();
  const { key } = await makeKey(api.db, who, '*');
  const env = { PATH: process.env['PATH'] ?? '', BERTH_URL: api.origin, BERTH_API_KEY: key };
  const running = run(join(BIN, 'node'), ['example.js'], { cwd: folder, env });
  running.catch(() => undefined);
  const id = await until('the example has made its instance', async () => {
    const { body } = await api.as(who).get<{ data: { id: string }[] }>('/v1/instances');
    return body.data[0]?.id;
  });
  const instance_id = id as Parameters<typeof api.agent.ready>[0];
  await api.agent.assigned(instance_id);
  await api.agent.ready(instance_id);
  const flush_id = await api.agent.askedToFlush(instance_id);
  await api.agent.commit(instance_id, 1);
  await api.agent.endFlush(flush_id);
  await api.agent.assigned(instance_id, 'it is to stop', ({ desired }) => desired === 'stopped');
  await api.agent.stopped(instance_id);
  const { stdout } = await running;
  assert.match(stdout, /^web runs: ssh .*\ngeneration 1 is durable\nstopped\n$/);
});
