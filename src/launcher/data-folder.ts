/**
 * Creates and locks the data folder: its subfolders with their modes, and the secrets at the first start. One launcher
 * holds the lock. A folder that a VM's user must traverse has mode 0711, a private one 0700.
 *
 * Also makes the checks of a start and of `berth doctor` that concern the folder: an unfinished restore, files that
 * others can read, a nearly full file system, and a listen address that another program has.
 */
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  closeSync,
  existsSync,
  ftruncateSync,
  lstatSync,
  openSync,
  readdirSync,
  readFileSync,
  type StatsFs,
  statfsSync,
  writeSync,
} from 'node:fs';
import { chmod, lstat, mkdir, open, readFile, rename, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { dirname, join } from 'node:path';
import type { Address } from '../config/config.ts';
import type { Paths } from '../config/paths.ts';
import type { WeakSetting } from '../config/weak-settings.ts';
import { errnoOf, messageOf } from '../shared/errors.ts';
import { pause } from '../shared/retry.ts';
import { isAlive } from './run-command.ts';
import { type Say, StartError } from './start-error.ts';
import { ORPHAN_GRACE_MS } from './supervise.ts';

/** Creates missing folders. Existing ones keep their modes, except those that must be private. */
export async function makeDataFolder(paths: Paths): Promise<void> {
  try {
    await makeFolders(paths.data);
    for (const folder of [paths.secrets, paths.run, paths.mail, paths.logs, paths.objects]) {
      await mkdir(folder, { recursive: true, mode: 0o700 });
    }
    // The umask restricts mkdir's mode, and a VM's user must traverse these.
    for (const folder of [paths.images, paths.debian_12, paths.overlays, paths.vms, paths.templates]) {
      if ((await mkdir(folder, { recursive: true })) !== undefined) await chmod(folder, 0o711);
    }
    for (const folder of [paths.secrets, paths.run]) await chmod(folder, 0o700);
  } catch (error) {
    throw new StartError(
      `the data folder ${paths.data} cannot be created or written (${messageOf(error)}); set BERTH_DATA_DIR to another folder`,
      2,
      { cause: error },
    );
  }
}

/** Not `recursive`: Node loops forever below a folder like /proc, which exists and takes no folders. */
async function makeFolders(path: string): Promise<void> {
  try {
    await mkdir(path, { mode: 0o711 });
  } catch (error) {
    const parent = dirname(path);
    if (errnoOf(error) === 'EEXIST') return;
    if (errnoOf(error) !== 'ENOENT' || (await lstat(parent).catch(() => undefined)) !== undefined)
      throw error;
    await makeFolders(parent);
    await mkdir(path, { mode: 0o711 });
  }
}

/** Exists while a restore is incomplete: nothing starts on such a folder. */
export const UNFINISHED_RESTORE = 'restore-unfinished';

/** @throws StartError */
export async function refuseUnfinishedRestore(paths: Paths): Promise<void> {
  const marker = join(paths.data, UNFINISHED_RESTORE);
  if ((await lstat(marker).catch(() => undefined)) === undefined) return;
  throw new StartError(
    `a restore into ${paths.data} did not finish: remove that folder and restore the backup again`,
  );
}

export interface Secrets {
  /** 32 bytes. */
  readonly secret_key: Buffer;
  /** 64 hexadecimal digits: authenticates this machine's agent to the control plane. */
  readonly host_token: string;
}

/** For a machine with a control plane, VMs and an ingress. As {@link ensureSecretKey}. */
export async function ensureSecrets(
  paths: Paths,
  given_key: Buffer | null,
  database_exists: boolean,
): Promise<Secrets> {
  const secret_key = await ensureSecretKey(paths, given_key, database_exists);
  await ensureSecret(paths.ingress_token);
  return { secret_key, host_token: await ensureSecret(paths.host_token) };
}

/**
 * Reads the secret key, or creates it at the first start. `given_key` (BERTH_SECRET_KEY) replaces the one in the folder. When a
 * database exists but its key is missing, this refuses rather than create a new key.
 */
export async function ensureSecretKey(
  paths: Paths,
  given_key: Buffer | null,
  database_exists: boolean,
): Promise<Buffer> {
  if (given_key === null && database_exists && (await readSecret(paths.secret_key)) === undefined) {
    throw new StartError(
      `the database exists, but its secret key ${paths.secret_key} does not: restore that file from a backup, or set BERTH_SECRET_KEY`,
    );
  }
  return given_key ?? Buffer.from(await ensureSecret(paths.secret_key), 'hex');
}

/** For the roles, after {@link ensureSecrets}. */
export async function readSecrets(paths: Paths, given_key: Buffer | null): Promise<Secrets> {
  const secret_key = await readSecretKey(paths, given_key);
  return { secret_key, host_token: await requireSecret(paths.host_token) };
}

/** Authenticates this machine's ingress to the control plane. */
export function readIngressSecret(paths: Paths): Promise<string> {
  return requireSecret(paths.ingress_token);
}

export async function readSecretKey(paths: Paths, given_key: Buffer | null): Promise<Buffer> {
  return given_key ?? Buffer.from(await requireSecret(paths.secret_key), 'hex');
}

/** Undefined on a machine without VMs. */
export function readHostToken(paths: Paths): Promise<string | undefined> {
  return readSecret(paths.host_token);
}

async function requireSecret(path: string): Promise<string> {
  const secret = await readSecret(path);
  if (secret === undefined) throw new StartError(`${path} is missing; npm start creates it`);
  return secret;
}

async function ensureSecret(path: string): Promise<string> {
  const found = await readSecret(path);
  if (found !== undefined) return found;
  const made = randomBytes(32).toString('hex');
  await writeSecret(path, `${made}\n`);
  return made;
}

async function readSecret(path: string): Promise<string | undefined> {
  try {
    if (((await lstat(path)).mode & 0o077) !== 0) await chmod(path, 0o600);
    const text = (await readFile(path, 'utf8')).trim();
    if (!/^[0-9a-f]{64}$/.test(text)) {
      throw new StartError(`${path} is damaged; expected 64 hexadecimal digits. Restore it from a backup`);
    }
    return text;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

/** Readable by its owner alone. Synced before it gets its name, so that a crash never loses a secret that was used. */
export async function writeSecret(path: string, text: string): Promise<void> {
  const temporary = `${path}.new`;
  await rm(temporary, { force: true });
  {
    await using file = await open(temporary, 'wx', 0o600);
    await file.writeFile(text);
    await file.sync();
  }
  await rename(temporary, path);
  await using folder = await open(dirname(path), 'r');
  await folder.sync();
}

/** @param secrets the folder of the secrets */
export function weakFiles(secrets: string): WeakSetting[] {
  const weak: WeakSetting[] = [];
  const open = [secrets, ...readdirSync(secrets).map((name) => join(secrets, name))].filter(
    (path) => (lstatSync(path).mode & 0o077) !== 0,
  );
  if (open.length > 0) {
    const found = `others on this machine may read ${open.join(', ')}: they open the database and the disks`;
    weak.push({ check: 'secrets', found, next: `chmod -R go= ${secrets}` });
  }
  const first_login = join(secrets, 'first-login');
  if (existsSync(first_login)) {
    const found = `the first administrator's generated password is still in ${first_login}`;
    weak.push({
      check: 'first login',
      found,
      next: `berth login, berth account password, then rm ${first_login}`,
    });
  }
  return weak;
}

/**
 * A data folder belongs to one running launcher. The lock is flock(2) on `run/launcher.lock`: the kernel releases it with the
 * last holder of the open file, so it is never stale and has one winner. Node has no flock, so util-linux's program locks
 * the open file that it inherits, and our descriptor keeps the lock. The file contains the holder's pid, only for messages.
 */
export interface DataFolderLock {
  /** The roles inherit it: the folder stays locked until the last role of a killed launcher has ended. */
  readonly fd: number;
  /** Idempotent. The end of the process does the same. */
  release(): void;
}

const HELD_ELSEWHERE = 1;
/** By then the roles of a killed launcher have ended. */
const ORPHANS_WAIT_MS = ORPHAN_GRACE_MS + 10_000;

/**
 * Throws {@link StartError} with the holder's pid when another launcher has the lock. When that launcher is dead and only its
 * roles are still ending, waits for them up to `wait_ms`.
 */
export async function lockDataFolder(
  lock_path: string,
  say: Say,
  wait_ms = ORPHANS_WAIT_MS,
): Promise<DataFolderLock> {
  // Other children do not inherit it: Node opens files close-on-exec.
  const fd = openSync(lock_path, 'a+', 0o600);
  try {
    const deadline_ms = Date.now() + wait_ms;
    for (let attempt = 0; !tryLock(fd, lock_path); attempt++) {
      const pid = Number(readFileSync(lock_path, 'utf8').trim());
      if (isAlive(pid)) throw new StartError(`another berth (pid ${pid}) already runs on this data folder`);
      if (Date.now() > deadline_ms) {
        throw new StartError(
          `processes of a killed berth (pid ${pid || 'unknown'}) are still running; try again`,
          1,
        );
      }
      if (attempt === 0) say(`waiting for processes of a killed berth (pid ${pid}) to end`);
      await pause(100);
    }
    ftruncateSync(fd);
    writeSync(fd, `${process.pid}\n`);
  } catch (error) {
    closeSync(fd);
    throw error;
  }
  let held = true;
  return {
    fd,
    release() {
      if (held) closeSync(fd);
      held = false;
    },
  };
}

function tryLock(fd: number, lock_path: string): boolean {
  const flock = spawnSync('flock', ['--exclusive', '--nonblock', '3'], {
    stdio: ['ignore', 'ignore', 'pipe', fd],
    encoding: 'utf8',
  });
  if (flock.error !== undefined) {
    throw new StartError(`flock (Debian package util-linux) cannot be run: ${flock.error.message}`);
  }
  if (flock.status === HELD_ELSEWHERE) return false;
  if (flock.status !== 0) throw new StartError(`${lock_path} cannot be locked: ${flock.stderr.trim()}`);
  return true;
}

/** Binds BERTH_LISTEN for a moment, so that a port in use is one error and not a role that keeps dying. */
export async function checkListenAddress({ host, port }: Address): Promise<void> {
  const server = createServer();
  try {
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      server.listen({ host, port, exclusive: true }, resolve);
    });
  } catch (error) {
    const shown = host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
    const why: Record<string, string> = {
      EADDRINUSE: 'another program listens there; set another port by BERTH_LISTEN=127.0.0.1:PORT',
      EADDRNOTAVAIL: 'this machine has no such address',
      EACCES: 'ports below 1024 need root',
      ENOTFOUND: 'there is no such host name',
    };
    throw new StartError(
      `BERTH_LISTEN: cannot listen on ${shown}: ${why[errnoOf(error) ?? ''] ?? messageOf(error)}`,
    );
  }
  await new Promise((resolve) => server.close(resolve));
}

/**
 * The generated password of the first administrator, in a file that only the server's user can read. `berth login` on this
 * machine reads it (`cli/server-facts.ts`), and deletes it when the password has changed.
 */
export interface FirstLogin {
  /** Of the API on this machine. */
  readonly url: string;
  readonly email: string;
  readonly password: string;
}

export function keepFirstLogin(paths: Pick<Paths, 'first_login'>, login: FirstLogin): Promise<void> {
  return writeSecret(paths.first_login, `${JSON.stringify(login)}\n`);
}

/** Undefined when it never existed, or was deleted. */
export async function readFirstLogin(paths: Pick<Paths, 'first_login'>): Promise<FirstLogin | undefined> {
  try {
    return JSON.parse(await readFile(paths.first_login, 'utf8')) as FirstLogin;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

const LEAST_FREE = 0.1;
const GIB = 2 ** 30;
const MIB = 2 ** 20;

/** A nearly full file system below the data folder, found before writes fail. */
export function fullDisk(
  data_dir: string,
  space: Pick<StatsFs, 'bavail' | 'blocks' | 'bsize'> = statfsSync(data_dir),
): WeakSetting[] {
  const { bavail, blocks, bsize } = space;
  if (bavail >= LEAST_FREE * blocks) return [];
  const [size, unit] = blocks * bsize >= GIB ? [GIB, 'GiB'] : [MIB, 'MiB'];
  const sized = (count: number) => ((count * bsize) / size).toFixed(1);
  const found = `nearly full: ${sized(bavail)} of ${sized(blocks)} ${unit} are free at ${data_dir}; without space VMs stop writing and flushes fail`;
  return [{ check: 'disk', found, next: `make room on the file system of ${data_dir}, or enlarge it` }];
}
