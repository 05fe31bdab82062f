import assert from 'node:assert/strict';
import { mkdir, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import pg from 'pg';
import { type Paths, pathsIn } from '../../src/config/paths.ts';
import {
  boundLog,
  type EmbeddedPostgres,
  runningServer,
  startEmbeddedPostgres,
  stopServer,
} from '../../src/launcher/embedded-postgres.ts';
import { isAlive } from '../../src/launcher/run-command.ts';
import { copyCluster } from '../support/cluster-template.ts';
import { until } from '../support/waiting.ts';
import { AS_ROOT, cleanUp, runScript, temporaryFolder } from './processes.ts';

/** Paths in a new folder. Any server that runs there at the end is stopped before the folder is removed. */
async function dataFolder(t: TestContext): Promise<Paths> {
  const paths = pathsIn(join(await temporaryFolder(t), 'data'));
  await mkdir(paths.data, { mode: 0o700 });
  return paths;
}

/** Like {@link dataFolder}, with a cluster, as after an earlier start. It saves the time of initdb. */
async function usedDataFolder(t: TestContext): Promise<Paths> {
  const paths = await dataFolder(t);
  await mkdir(paths.postgres, { mode: 0o711 });
  await copyCluster(join(paths.postgres, 'cluster'));
  return paths;
}

async function start(t: TestContext, paths: Paths): Promise<EmbeddedPostgres> {
  const postgres = await startEmbeddedPostgres(paths, { say: () => undefined });
  cleanUp(t, () => postgres.stop());
  return postgres;
}

async function query(url: string, text: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => undefined);
  await client.connect();
  try {
    return (await client.query(text)).rows;
  } finally {
    await client.end();
  }
}

test(
  'starts below a 0700 folder, serves a unix socket only, and keeps its data over a restart',
  AS_ROOT,
  async (t) => {
    const paths = await dataFolder(t);
    const first = await start(t, paths);
    assert.equal(first.adopted, false);
    const [settings] = await query(
      first.database_url,
      `SELECT current_database() AS db, current_setting('listen_addresses') AS tcp, current_setting('data_checksums') AS checksums,
       current_setting('server_encoding') AS encoding, current_setting('synchronous_commit') AS sync,
       (SELECT datcollate FROM pg_database WHERE datname = current_database()) AS locale`,
    );
    assert.deepEqual(settings, {
      db: 'berth',
      tcp: '',
      checksums: 'on',
      encoding: 'UTF8',
      sync: 'on',
      locale: 'C.UTF-8',
    });
    for (const folder of ['cluster', 'socket']) {
      assert.equal((await stat(join(paths.postgres, folder))).mode & 0o777, 0o700, folder);
    }
    await query(first.database_url, 'CREATE TABLE kept AS SELECT 42 AS answer');
    const pid = first.pid();
    await first.stop();
    assert.equal(isAlive(pid), false);
    const second = await start(t, paths);
    assert.deepEqual(await query(second.database_url, 'SELECT answer FROM kept'), [{ answer: 42 }]);
  },
);

test('a server survives the kill of its launcher, and the next start adopts it', async (t) => {
  const paths = await usedDataFolder(t);
  const starter = runScript(
    t,
    `import { startEmbeddedPostgres } from 'SRC/launcher/embedded-postgres.ts';
     import { pathsIn } from 'SRC/config/paths.ts';
     const postgres = await startEmbeddedPostgres(pathsIn(${JSON.stringify(paths.data)}), { say: () => undefined });
     console.log('pid ' + postgres.pid());
     setInterval(() => {}, 1000);`,
  );
  cleanUp(t, async () => {
    const running = await runningServer(join(paths.postgres, 'cluster'));
    if (running !== undefined) await stopServer(running.pid);
  });
  const pid = Number(
    await until('it is started', () => /pid (\d+)/.exec(starter.output())?.[1]).catch((error) => {
      throw new Error(starter.output(), { cause: error });
    }),
  );
  process.kill(starter.pid, 'SIGKILL');
  await starter.ended;
  const adopted = await start(t, paths);
  assert.equal(adopted.adopted, true);
  assert.equal(adopted.pid(), pid);
  await query(adopted.database_url, 'SELECT 1');
  await adopted.stop();
  assert.equal(isAlive(pid), false);
});

test('the watch restarts a killed server, with everything that was committed', async (t) => {
  const paths = await usedDataFolder(t);
  const postgres = await start(t, paths);
  await query(postgres.database_url, 'CREATE TABLE kept AS SELECT 1 AS row');
  const killed = postgres.pid();
  process.kill(killed, 'SIGKILL');
  await until('another server runs', () => postgres.pid() !== killed);
  assert.deepEqual(await query(postgres.database_url, 'SELECT row FROM kept'), [{ row: 1 }]);
});

test('a server killed without a watch is started by the next start over its stale files', async (t) => {
  const paths = await usedDataFolder(t);
  const first = await start(t, paths);
  first.abandon();
  process.kill(first.pid(), 'SIGKILL');
  await until('it is gone', () => !isAlive(first.pid()));
  const second = await start(t, paths);
  assert.equal(second.adopted, false);
  await query(second.database_url, 'SELECT 1');
});

test('a start waits for a server that is shutting down, and starts it again', async (t) => {
  const paths = await usedDataFolder(t);
  const first = await start(t, paths);
  first.abandon();
  const session = new pg.Client({ connectionString: first.database_url });
  session.on('error', () => undefined);
  await session.connect();
  // Waits for its sessions, and takes no others.
  process.kill(first.pid(), 'SIGTERM');
  const ended = session.query('SELECT pg_sleep(1)').then(() => session.end());
  const second = await start(t, paths);
  await ended;
  assert.equal(second.adopted, false);
  await query(second.database_url, 'SELECT 1');
});

test('a server whose folder was deleted is ended first: it would unlink the socket of the new one', async (t) => {
  const paths = await usedDataFolder(t);
  const first = await start(t, paths);
  first.abandon();
  const session = new pg.Client({ connectionString: first.database_url });
  session.on('error', () => undefined);
  await session.connect();
  // The server may write a file into a folder that is being emptied.
  await rm(paths.postgres, { recursive: true, maxRetries: 20 });
  const second = await start(t, paths);
  assert.equal(isAlive(first.pid()), false);
  await query(second.database_url, 'SELECT 1');
});

test('the remains of an interrupted initdb are removed', async (t) => {
  const paths = await dataFolder(t);
  await mkdir(join(paths.postgres, 'cluster.new-1', 'base'), { recursive: true });
  await start(t, paths);
  assert.deepEqual((await readdir(paths.postgres)).sort(), ['cluster', 'socket']);
});

test('a cluster of another PostgreSQL version is refused, naming both', async (t) => {
  const paths = await dataFolder(t);
  await mkdir(join(paths.postgres, 'cluster'), { recursive: true });
  await writeFile(join(paths.postgres, 'cluster', 'PG_VERSION'), '15\n');
  await assert.rejects(start(t, paths), {
    name: 'StartError',
    message: /is of PostgreSQL 15, and this program brings PostgreSQL 18/,
  });
});

test('the failure of a server that cannot start quotes its log', async (t) => {
  const paths = await usedDataFolder(t);
  await (await start(t, paths)).stop();
  const settings = join(paths.postgres, 'cluster', 'postgresql.conf');
  await writeFile(settings, `${await readFile(settings, 'utf8')}\nno_such_setting = 1\n`);
  await assert.rejects(
    start(t, paths),
    /^StartError: PostgreSQL did not start: .*configuration file.*contains errors/s,
  );
});

test('the log is rotated at its bound', async (t) => {
  const log_path = join(await temporaryFolder(t), 'postgres.log');
  await writeFile(log_path, 'x'.repeat(100));
  await boundLog(log_path, 100);
  assert.equal((await stat(log_path)).size, 100);
  await boundLog(log_path, 99);
  assert.equal((await stat(log_path)).size, 0);
  assert.equal((await stat(`${log_path}.1`)).size, 100);
});
