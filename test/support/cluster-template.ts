/**
 * Makes a PostgreSQL cluster whose database has all migrations, once, and copies it for each use: initdb and the
 * migrations take seconds, a copy takes tenths of a second. The template is in `.cache/`, under a name that follows
 * from the migrations and the packages. If two processes find no template, both make one, and the first rename wins.
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rename, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { pathsIn } from '../../src/config/paths.ts';
import { migrate } from '../../src/control-plane/db/migrate.ts';
import { startEmbeddedPostgres } from '../../src/launcher/embedded-postgres.ts';
import { errnoOf } from '../../src/shared/errors.ts';

const run = promisify(execFile);
const PROJECT = join(import.meta.dirname, '..', '..');
const CACHE = join(PROJECT, '.cache');
const UNUSED_MS = 3_600_000;

/** Copies the cluster to `folder`, which does not exist yet. */
export async function copyCluster(folder: string): Promise<void> {
  await run('cp', ['-a', await clusterTemplate(), folder]);
}

/** Makes the template if it is missing. */
async function clusterTemplate(): Promise<string> {
  const template = join(CACHE, `postgres-${await templateKey()}`);
  if (existsSync(template)) return template;
  const folder = await mkdtemp(join(tmpdir(), `berth-db-${process.pid}-`));
  const beside = `${template}.new-${process.pid}`;
  try {
    const paths = pathsIn(join(folder, 'data'));
    const server = await startEmbeddedPostgres(paths, { say: () => undefined });
    try {
      await migrate(server.database_url);
    } finally {
      await server.stop();
    }
    await mkdir(CACHE, { recursive: true });
    await run('cp', ['-a', join(paths.postgres, 'cluster'), beside]);
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
  const sql_dir = join(PROJECT, 'src', 'control-plane', 'db', 'sql');
  for (const name of (await readdir(sql_dir)).sort()) {
    hash.update(`${name}\0`).update(await readFile(join(sql_dir, name)));
  }
  hash.update(await readFile(join(PROJECT, 'package-lock.json')));
  hash.update(String(process.getuid?.())).update('as shipped');
  return hash.digest('hex').slice(0, 16);
}

/** Those of other migrations or packages, once no test can be copying them. */
async function removeOlderTemplates(present: string): Promise<void> {
  for (const name of await readdir(CACHE)) {
    const path = join(CACHE, name);
    if (!/^postgres-[0-9a-f]{16}/.test(name) || path === present) continue;
    // One that another process was making may be gone by now.
    const { mtimeMs = Date.now() } = await stat(path).catch(() => ({ mtimeMs: undefined }));
    if (Date.now() - mtimeMs > UNUSED_MS) await rm(path, { recursive: true, force: true, maxRetries: 5 });
  }
}
