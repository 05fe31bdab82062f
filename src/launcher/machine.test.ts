import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { type Config, parseConfig } from '../config/config.ts';
import { pathsIn } from '../config/paths.ts';
import { checkMachine, type MachineKind } from './machine.ts';

const TOKEN = `berth_host_${'a'.repeat(49)}.${'b'.repeat(43)}`;
const HOST = { BERTH_CONTROL_PLANE: 'https://10.0.0.1:7500' };
const CONTROL_PLANE = {
  DATABASE_URL: 'postgres://berth@db/berth',
  BERTH_S3_BUCKET: 'berth',
  BERTH_SECRET_KEY: '7'.repeat(64),
  BERTH_HOSTS_LISTEN: '10.0.0.2:7500',
};

async function folder(t: TestContext): Promise<string> {
  const made = await mkdtemp(join(tmpdir(), 'berth-'));
  t.after(() => rm(made, { recursive: true }));
  await writeFile(join(made, 'token'), TOKEN, { mode: 0o600 });
  return made;
}

function configOf(settings: Record<string, string>): Config {
  const parsed = parseConfig(settings, '/');
  assert(parsed.ok, parsed.ok ? '' : parsed.problems.join());
  return parsed.config;
}

/** The settings that the refusal names, each in a line. */
async function named(
  machine: MachineKind,
  settings: Record<string, string>,
  data: string,
): Promise<string[]> {
  try {
    await checkMachine(machine, configOf(settings), pathsIn(data));
    return [];
  } catch (error) {
    const { exit_code, message } = error as { exit_code: number; message: string };
    assert.equal(exit_code, 2);
    return message.split('\n').map((line) => line.split(':')[0] ?? '');
  }
}

test('a control plane names every setting that it lacks', async (t) => {
  const data = await folder(t);
  assert.deepEqual(await named('control-plane', {}, data), Object.keys(CONTROL_PLANE));
  assert.deepEqual(await named('control-plane', CONTROL_PLANE, data), []);
  const everywhere = { ...CONTROL_PLANE, BERTH_HOSTS_LISTEN: '0.0.0.0:7500' };
  assert.deepEqual(await named('control-plane', everywhere, data), ['BERTH_HOSTS_URL']);
  const url = { BERTH_HOSTS_URL: 'https://10.0.0.2:7500' };
  assert.deepEqual(await named('control-plane', { ...everywhere, ...url }, data), []);
});

test('a host names every setting that it lacks, and a token that is none', async (t) => {
  const data = await folder(t);
  const token = { BERTH_HOST_TOKEN_FILE: join(data, 'token') };
  assert.deepEqual(await named('host', {}, data), ['BERTH_CONTROL_PLANE', 'BERTH_HOST_TOKEN_FILE']);
  assert.deepEqual(await named('host', { ...HOST, ...token }, data), []);
  const bucket = { BERTH_S3_BUCKET: 'berth', AWS_ACCESS_KEY_ID: 'id', AWS_SECRET_ACCESS_KEY: 'secret' };
  assert.deepEqual(await named('host', { ...HOST, ...token, ...bucket }, data), ['BERTH_S3_BUCKET']);
  await writeFile(join(data, 'token'), 'nothing');
  assert.deepEqual(await named('host', { ...HOST, ...token }, data), ['BERTH_HOST_TOKEN_FILE']);
});

test('one machine needs no setting, and is no host of another control plane', async (t) => {
  const data = await folder(t);
  assert.deepEqual(await named('all', {}, data), []);
  const joined = { ...HOST, BERTH_HOST_TOKEN_FILE: join(data, 'token') };
  assert.deepEqual(await named('all', joined, data), ['BERTH_CONTROL_PLANE']);
});
