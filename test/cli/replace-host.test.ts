/** Which data folder is the host `local` of a database: as the start and `berth host replace` say it, each a process of its own. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { pathsIn } from '../../src/config/paths.ts';
import { openPool } from '../../src/control-plane/db/pool.ts';
import { ensureHost } from '../../src/control-plane/fleet/host-store.ts';
import { claimRootKey } from '../../src/control-plane/fleet/root-key.ts';
import { hashToken } from '../../src/control-plane/identity/tokens.ts';
import { isStopped } from '../../src/host/qemu/qemu-process.ts';
import { readHostToken, readSecretKey } from '../../src/launcher/data-folder.ts';
import { runningDatabaseUrl, startEmbeddedPostgres } from '../../src/launcher/embedded-postgres.ts';
import { newId } from '../../src/shared/ids.ts';
import { temporaryFolder } from '../launcher/processes.ts';
import { apiForFile } from '../support/api.ts';
import { lookalikeVm } from '../support/lookalike-vm.ts';
import { ownPort } from '../support/own-ports.ts';
import { copyDatabase } from '../support/seeds.ts';
import { serverCliForFile } from '../support/server-cli.ts';
import { until } from '../support/waiting.ts';

const MAIN = join(import.meta.dirname, '..', '..', 'src', 'main.ts');
const api = await apiForFile();
const { db } = api;
/** The settings and the data folder of a second machine. */
const { berth, berthWith, settings, data_dir } = await serverCliForFile(api);
const paths = pathsIn(data_dir);
const hosts = () =>
  db.selectFrom('hosts').select(['id', 'token_hash', 'removed_at']).orderBy('created_at').execute();

/** The control plane of `npm start`. Its output so far, and its exit code. */
async function controlPlane(...options: string[]) {
  const port = await ownPort();
  const env = { PATH: process.env['PATH'] ?? '', ...settings, BERTH_LISTEN: `127.0.0.1:${port}` };
  const child = spawn(process.execPath, [MAIN, 'control-plane', ...options], {
    env,
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  after(() => child.kill('SIGKILL'));
  const ran = { child, port, err: '', exited: once(child, 'exit') };
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    ran.err += text;
  });
  return ran;
}

test('npm start on a second data folder takes the host local only after berth host replace, which needs no running server', async () => {
  await api.agent.silence();
  const long_ago = sql<Date>`now() - interval '1 hour'`;
  await db.updateTable('hosts').set({ last_seen_at: long_ago }).execute();
  const vm = await lookalikeVm(paths.vms, newId('inst'), newId('vm'));
  const refused = await controlPlane();
  assert.deepEqual(await refused.exited, [2, null], refused.err);
  const said = refused.err.split('\n').filter((line) => line.startsWith('berth: '));
  assert.equal(said.length, 1, refused.err);
  assert.match(said[0] ?? '', /is another data folder.*: berth host replace local --machine-gone;/);
  assert.match(said[0] ?? '', /VMs of this folder were paused: 1$/);
  await until('VMs of a folder that is not the host are paused', () => isStopped(vm));
  assert.deepEqual(
    (await hosts()).map(({ id }) => id),
    [api.host_id],
  );

  // As the line says, a control plane alone runs here: it is no host, although the folder has a token.
  const beside = await controlPlane('--migrated');
  await until('it serves', async () => {
    assert.equal(beside.child.exitCode, null, beside.err);
    return fetch(`http://127.0.0.1:${beside.port}/healthz`).then(
      ({ ok }) => ok,
      () => false,
    );
  });
  assert.deepEqual(
    (await hosts()).map(({ id }) => id),
    [api.host_id],
  );
  beside.child.kill('SIGTERM');
  await beside.exited;

  const asked = await berth('host', 'replace', 'local');
  assert.deepEqual([asked.code, asked.out], [2, ''], asked.err);
  const replaced = await berth('host', 'replace', 'local', '--machine-gone');
  assert.deepEqual([replaced.code, replaced.err], [0, ''], replaced.out);
  assert.match(replaced.out, /^Removed local\. The next npm start on this database is local\.$/m);
  const started = await controlPlane();
  const mine = hashToken((await readHostToken(paths)) ?? assert.fail('a token'));
  await until('this data folder is the host', async () => {
    assert.equal(started.child.exitCode, null, started.err);
    return (await hosts()).some(
      ({ token_hash, removed_at }) => removed_at === null && token_hash.equals(mine),
    );
  });
  const [before, now, ...more] = await hosts();
  assert.deepEqual([before?.id, more.length], [api.host_id, 0]);
  assert.notEqual(now?.id, api.host_id);
  started.child.kill('SIGTERM');
  await started.exited;
});

test('with the embedded database, which no start runs, it works too, and stops the database again', async (t) => {
  const folder = await temporaryFolder(t);
  const own = pathsIn(folder);
  await copyDatabase(own);
  const postgres = await startEmbeddedPostgres(own, { say: () => undefined });
  const pool = openPool(postgres.database_url, () => undefined);
  await claimRootKey(pool, await readSecretKey(own, null));
  await ensureHost(pool, 'local', hashToken('of a lost file'));
  await pool.destroy();
  await postgres.stop();
  const ran = await berthWith({ BERTH_DATA_DIR: folder }, ['host', 'replace', 'local', '--machine-gone']);
  assert.deepEqual([ran.code, ran.err], [0, ''], ran.out);
  assert.equal(await runningDatabaseUrl(own), undefined);
  // Not of a folder without a database: it makes none.
  const none = await berthWith({ BERTH_DATA_DIR: join(folder, 'none') }, [
    'host',
    'replace',
    'local',
    '--machine-gone',
  ]);
  assert.equal(none.code, 6, none.err);
});
