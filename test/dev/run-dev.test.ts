/**
 * `npm run dev` keeps working for a user who is not root, with no program of Debian on the PATH but flock: from nothing to an instance
 * whose VM runs a command, flushes and stops, and through a change of the code.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chownSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { Berth } from '../../client/src/berth.ts';
import { pathsIn } from '../../src/config/paths.ts';
import { runningServer } from '../../src/launcher/embedded-postgres.ts';
import { ownPorts } from '../support/own-ports.ts';
import { RestClient } from '../support/rest-client.ts';
import { until } from '../support/waiting.ts';

const PROJECT = join(import.meta.dirname, '..', '..');
const DEV = join(PROJECT, 'bin', 'dev.ts');
/** `nobody`. */
const USER = { uid: 65_534, gid: 65_534 };
const AS_USER = process.getuid?.() === 0 ? USER : {};

interface Dev {
  readonly child: ChildProcess;
  readonly output: () => string;
  readonly data: string;
  readonly url: string;
}

async function startDev(t: TestContext, prepare: (data: string) => void = () => undefined): Promise<Dev> {
  const folder = mkdtempSync(join(tmpdir(), 'bd-'));
  const [data, programs] = [join(folder, 'data'), join(folder, 'bin')];
  mkdirSync(programs);
  prepare(data);
  symlinkSync('/usr/bin/flock', join(programs, 'flock'));
  if (AS_USER === USER) chownSync(folder, USER.uid, USER.gid);
  const ports = await ownPorts(4);
  const url = `http://127.0.0.1:${ports.first}`;
  const env = {
    PATH: programs,
    BERTH_DATA_DIR: data,
    BERTH_LISTEN: `127.0.0.1:${ports.first}`,
    BERTH_HTTP_LISTEN: `127.0.0.1:${ports.first + 1}`,
    BERTH_SSH_PORTS: `${ports.first + 2}-${ports.first + 3}`,
  };
  const child = spawn(process.execPath, [DEV], {
    cwd: PROJECT,
    env,
    stdio: ['ignore', 'pipe', 'pipe'],
    ...AS_USER,
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
  t.after(async () => {
    if (child.exitCode === null) {
      const gone = once(child, 'exit');
      child.kill('SIGTERM');
      await gone;
    }
    ports.release();
    rmSync(folder, { recursive: true, force: true });
  });
  return { child, output: () => output, data, url };
}

test('it serves an instance that starts, runs a command, flushes and stops, and reloads changed code', async (t) => {
  const { child, output, data, url } = await startDev(t);
  const says = (text: RegExp) =>
    until(`it says ${text}`, () => {
      assert.equal(child.exitCode, null, output());
      return text.exec(output());
    });
  await says(/ready after/);
  const [, email = '', password = ''] = await says(/log in there as (\S+) with the password (\S+)/);
  assert.match(await (await fetch(url)).text(), /<!doctype html>/i);
  const client = new RestClient(url);
  await client.login(email, password);
  const berth = new Berth({ url, token: client.token });
  const { id } = await berth.instances.create({ name: 'first' });
  const vm = await berth.vm(id).start();
  assert.equal((await vm.exec('echo hello > /root/greeting && cat /root/greeting')).stdout, 'hello\n');
  assert.equal(await (await berth.files(id).read('/root/greeting')).text(), 'hello\n');
  const receipt = await vm.flush();
  assert.ok(receipt.generation > 0 && receipt.durable_at !== null);

  const now = new Date();
  utimesSync(join(PROJECT, 'src', 'main.ts'), now, now);
  await says(/src\/main\.ts changed/);
  await says(/ready again/);
  assert.equal((await vm.exec(['cat', '/root/greeting'])).stdout, 'hello\n');
  assert.equal((await vm.stop()).state, 'stopped');

  const gone = once(child, 'exit');
  child.kill('SIGINT');
  assert.deepEqual(await gone, [0, null], output());
  assert.equal(
    await runningServer(join(pathsIn(data).postgres, 'cluster')),
    undefined,
    'PostgreSQL has ended',
  );
});

test('it refuses a data folder that it has not made: instances of a real host may be there', async (t) => {
  const { child, output } = await startDev(t, (data) => {
    mkdirSync(data);
    writeFileSync(join(data, 'something'), '');
  });
  const [code] = await once(child, 'exit');
  assert.equal(code, 2, output());
  assert.match(output(), /^berth: BERTH_DATA_DIR: .* was not made by npm run dev/m);
});
