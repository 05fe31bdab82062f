/**
 * Real PostgreSQL for tests: a server and a migrated database of its own for each test file, through the same code
 * that `npm start` uses.
 *
 * Why a server a file, and not one for all: files are separate processes that end in any order and sometimes by
 * SIGKILL, so a shared server needs a lock, a count of users, and somebody to be the last. What is dear is initdb and
 * the migrations (seconds), not the start (tenths of a second). So they are done once, into a template folder under
 * `.cache/` named after the migrations and the server's version, and each file starts on a copy of it. Two processes
 * that find no template both make one; a rename decides. The copy does without fsync: nothing here survives its file.
 * It is made in memory where there is room: most of a file's time was spent on copying it to a disk.
 *
 * Folders are named after the process; what a killed test file left behind is ended and removed by the next one.
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { appendFile, mkdir, mkdtemp, readdir, readFile, rename, rm, stat, statfs } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { pathsIn } from '../../src/config/paths.ts';
import { migrate } from '../../src/db/migrate.ts';
import { type Db, openPool } from '../../src/db/pool.ts';
import { type EmbeddedPostgres, startEmbeddedPostgres } from '../../src/launch/embedded-postgres.ts';
import { runningServer, stopServer } from '../../src/launch/postgres-process.ts';
import { isAlive } from '../../src/launch/process-life.ts';
import { errnoOf } from '../../src/lib/errors.ts';
import { endIfInterrupted } from './interrupted.ts';

const run = promisify(execFile);
const PROJECT = join(import.meta.dirname, '..', '..');
const CACHE = join(PROJECT, '.cache');
const PREFIX = 'berth-db-';
const IN_MEMORY = '/dev/shm';
const ROOM_BYTES = 2 * 2 ** 30;

export interface TestDatabase {
  /** Of the migrated database. */
  readonly url: string;
  readonly db: Db;
  /** The folder of the server's unix socket. */
  readonly socket_dir: string;
  /** Makes another, empty database on the same server. */
  createEmpty(name: string): Promise<string>;
  close(): Promise<void>;
}

/** Starts a server with a fresh, migrated database. The caller closes it in an `after` hook. */
export async function startDatabase(): Promise<TestDatabase> {
  await sweepLeftovers();
  const template = await clusterTemplate();
  const folder = await mkdtemp(join(await scratchFolder(), `${PREFIX}${process.pid}-`));
  let server: EmbeddedPostgres | undefined;
  const end = async () => {
    await server?.stop();
    await rm(folder, { recursive: true, force: true, maxRetries: 5 });
    ended();
  };
  const ended = endIfInterrupted(end);
  try {
    const paths = pathsIn(join(folder, 'data'));
    await mkdir(paths.postgres, { recursive: true, mode: 0o711 });
    const cluster = join(paths.postgres, 'cluster');
    await run('cp', ['-a', template, cluster]);
    await appendFile(join(cluster, 'postgresql.conf'), '\nfsync = off\nfull_page_writes = off\n');
    server = await startEmbeddedPostgres(paths, { say: () => undefined });
    const url = server.database_url;
    await migrate(url);
    const db = openPool(url, () => undefined);
    return {
      url,
      db,
      socket_dir: join(paths.postgres, 'socket'),
      createEmpty: (name) => createEmpty(url, name),
      close: async () => {
        await db.destroy();
        await end();
      },
    };
  } catch (error) {
    await end();
    throw error;
  }
}

/** Runs one statement on a connection of its own. */
export async function queryOnce<Row extends pg.QueryResultRow>(
  url: string,
  text: string,
  values: unknown[] = [],
): Promise<Row[]> {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => undefined);
  await client.connect();
  try {
    return (await client.query<Row>(text, values)).rows;
  } finally {
    await client.end();
  }
}

async function createEmpty(url: string, name: string): Promise<string> {
  await queryOnce(url, `create database ${pg.escapeIdentifier(name)} template template0`);
  const other = new URL(url);
  other.pathname = `/${name}`;
  return other.href;
}

/** The folder of a cluster with the migrated database, made at need. */
export async function clusterTemplate(): Promise<string> {
  const template = join(CACHE, `postgres-${await templateKey()}`);
  if (await exists(template)) return template;
  const folder = await mkdtemp(join(tmpdir(), `${PREFIX}${process.pid}-`));
  const beside = `${template}.new-${process.pid}`;
  try {
    const paths = pathsIn(join(folder, 'data'));
    const server = await startEmbeddedPostgres(paths, { say: () => undefined });
    try {
      await migrate(server.database_url);
    } finally {
      await server.stop();
    }
    const cluster = join(paths.postgres, 'cluster');
    await mkdir(CACHE, { recursive: true });
    await run('cp', ['-a', cluster, beside]);
    await rename(beside, template).catch((error: unknown) => {
      // Another process was quicker.
      if (!['ENOTEMPTY', 'EEXIST'].includes(errnoOf(error) ?? '')) throw error;
    });
  } finally {
    for (const each of [beside, folder]) await rm(each, { recursive: true, force: true, maxRetries: 5 });
  }
  await removeOlderTemplates(template);
  return template;
}

async function templateKey(): Promise<string> {
  const hash = createHash('sha256');
  const sql_dir = join(PROJECT, 'src', 'db', 'sql');
  for (const name of (await readdir(sql_dir)).sort()) {
    hash.update(`${name}\0`).update(await readFile(join(sql_dir, name)));
  }
  hash.update(await readFile(join(PROJECT, 'package-lock.json')));
  hash.update(String(process.getuid?.())).update('as shipped');
  return hash.digest('hex').slice(0, 16);
}

/** An hour old: nobody copies one any more, after the migrations or the packages have changed. */
async function removeOlderTemplates(present: string): Promise<void> {
  for (const name of await readdir(CACHE)) {
    const path = join(CACHE, name);
    if (!/^postgres-[0-9a-f]{16}/.test(name) || path === present) continue;
    // One that another process was making may be gone by now.
    const { mtimeMs = Date.now() } = await stat(path).catch(() => ({ mtimeMs: undefined }));
    const age_ms = Date.now() - mtimeMs;
    if (age_ms > 3_600_000) await rm(path, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** In memory where a few copies, and what tests write, have room. */
async function scratchFolder(): Promise<string> {
  const { bavail, bsize } = await statfs(IN_MEMORY).catch(() => ({ bavail: 0, bsize: 0 }));
  return bavail * bsize > ROOM_BYTES ? IN_MEMORY : tmpdir();
}

/** Ends the servers of test files that were killed and removes their folders. */
async function sweepLeftovers(): Promise<void> {
  for (const scratch of [IN_MEMORY, tmpdir()]) await sweepLeftoversIn(scratch);
}

async function sweepLeftoversIn(scratch: string): Promise<void> {
  for (const name of await readdir(scratch).catch(() => [])) {
    const pid = Number(new RegExp(`^${PREFIX}(\\d+)-`).exec(name)?.[1]);
    if (!Number.isSafeInteger(pid) || isAlive(pid)) continue;
    const folder = join(scratch, name);
    const server = await runningServer(join(pathsIn(join(folder, 'data')).postgres, 'cluster'));
    if (server) await stopServer(server.pid).catch(() => undefined);
    await rm(folder, { recursive: true, force: true, maxRetries: 5 });
  }
}

async function exists(path: string): Promise<boolean> {
  try {
    await stat(path);
    return true;
  } catch {
    return false;
  }
}
