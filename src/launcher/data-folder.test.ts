import assert from 'node:assert/strict';
import { chmod, mkdtemp, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { type Paths, pathsIn } from '../config/paths.ts';
import { ensureSecrets, fullDisk, makeDataFolder, readSecrets } from './data-folder.ts';

async function dataFolder(t: TestContext): Promise<Paths> {
  const folder = await mkdtemp(join(tmpdir(), 'berth-'));
  t.after(() => rm(folder, { recursive: true }));
  const paths = pathsIn(join(folder, 'data'));
  await makeDataFolder(paths);
  return paths;
}

async function modeOf(path: string): Promise<number> {
  return (await stat(path)).mode & 0o777;
}

test('secrets are private, also after somebody has made them readable', async (t) => {
  const paths = await dataFolder(t);
  await ensureSecrets(paths, null, false);
  await chmod(paths.secrets, 0o755);
  await chmod(paths.secret_key, 0o644);
  await makeDataFolder(paths);
  await ensureSecrets(paths, null, true);
  assert.equal(await modeOf(paths.secrets), 0o700);
  for (const path of [paths.secret_key, paths.host_token]) assert.equal(await modeOf(path), 0o600);
  for (const path of [paths.overlays, paths.vms, paths.images]) assert.equal(await modeOf(path), 0o711);
});

test('secrets are created once, differ, and are the same for the roles', async (t) => {
  const paths = await dataFolder(t);
  const made = await ensureSecrets(paths, null, false);
  assert.equal(made.secret_key.length, 32);
  assert.match(made.host_token, /^[0-9a-f]{64}$/);
  assert.notEqual(made.secret_key.toString('hex'), made.host_token);
  assert.deepEqual(await ensureSecrets(paths, null, true), made);
  assert.deepEqual(await readSecrets(paths, null), made);
  assert.deepEqual((await readdir(paths.secrets)).sort(), ['host-token', 'ingress-token', 'secret-key']);
});

test('a given key is used and not stored', async (t) => {
  const paths = await dataFolder(t);
  const given = Buffer.alloc(32, 9);
  assert.equal((await ensureSecrets(paths, given, true)).secret_key, given);
  assert.deepEqual(await readdir(paths.secrets), ['host-token', 'ingress-token']);
});

test('a database whose key is lost is refused rather than given a new key', async (t) => {
  const paths = await dataFolder(t);
  await assert.rejects(ensureSecrets(paths, null, true), {
    name: 'StartError',
    message: /secret key .* does not.*BERTH_SECRET_KEY/,
  });
});

test('a damaged secret is refused rather than replaced', async (t) => {
  const paths = await dataFolder(t);
  await writeFile(paths.secret_key, '', { mode: 0o600 });
  await assert.rejects(ensureSecrets(paths, null, false), /secret-key is damaged/);
});

test('the error of a data folder that cannot be created names the setting', async () => {
  for (const path of [join(import.meta.filename, 'data'), '/proc/berth', '/proc/berth/data']) {
    await assert.rejects(makeDataFolder(pathsIn(path)), {
      name: 'StartError',
      exit_code: 2,
      message: /BERTH_DATA_DIR/,
    });
  }
});

test('less than a tenth of free space is told with both numbers and the folder', () => {
  const space = { bsize: 4_096, blocks: 100 * 262_144 };
  assert.deepEqual(fullDisk('/data', { ...space, bavail: 10 * 262_144 }), []);
  const [weak] = fullDisk('/data', { ...space, bavail: 10 * 262_144 - 1 });
  assert.match(weak?.found ?? '', /^nearly full: 10\.0 of 100\.0 GiB are free at \/data;/);
});

test('a small file system is told in MiB', () => {
  const [weak] = fullDisk('/data', { bsize: 4_096, blocks: 2_560, bavail: 128 });
  assert.match(weak?.found ?? '', /^nearly full: 0\.5 of 10\.0 MiB are free at \/data;/);
});
