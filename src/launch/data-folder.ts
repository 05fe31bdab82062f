/**
 * The data folder on disk: which folders there are, who may enter them, and the two secrets made at the first start.
 * What a VM's user must pass through is 0711 (enter, not list); what only we read is 0700.
 */
import { randomBytes } from 'node:crypto';
import { chmod, lstat, mkdir, open, readFile, rename, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Paths } from '../config/paths.ts';
import { errnoOf, messageOf } from '../lib/errors.ts';
import { StartError } from './start-error.ts';

/** Makes what is missing. Folders that exist keep their modes, except those that must be closed. */
export async function makeDataFolder(paths: Paths): Promise<void> {
  try {
    await makeFolders(paths.data);
    for (const folder of [paths.secrets, paths.run, paths.mail, paths.logs, paths.objects]) {
      await mkdir(folder, { recursive: true, mode: 0o700 });
    }
    // mkdir's mode passes through the umask; these are what a VM's user passes through.
    for (const folder of [paths.images, paths.debian_12, paths.overlays, paths.vms, paths.templates]) {
      if ((await mkdir(folder, { recursive: true })) !== undefined) await chmod(folder, 0o711);
    }
    for (const folder of [paths.secrets, paths.run]) await chmod(folder, 0o700);
  } catch (error) {
    throw new StartError(
      `the data folder ${paths.data} can't be made or written (${messageOf(error)}); set BERTH_DATA_DIR to one that can`,
      2,
      { cause: error },
    );
  }
}

/** Not `recursive`: that never ends where a folder is there and takes none, as /proc. */
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

/** There while what a restore brings back is not all there: nothing starts on it. */
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
  /** 64 hexadecimal digits: what the agent of this machine shows the control plane. */
  readonly host_token: string;
}

/**
 * Reads both secrets, making them at the first start. `given_key` (BERTH_SECRET_KEY) takes the place of the one in the
 * folder. A database without the key its contents were encrypted with is refused rather than given a new key;
 * `database_exists` says whether there is one already.
 */
export async function ensureSecrets(
  paths: Paths,
  given_key: Buffer | null,
  database_exists: boolean,
): Promise<Secrets> {
  if (given_key === null && database_exists && (await readSecret(paths.secret_key)) === undefined) {
    throw new StartError(
      `the database exists, but its secret key ${paths.secret_key} does not: bring that file back from a backup, or set BERTH_SECRET_KEY`,
    );
  }
  const secret_key = given_key ?? Buffer.from(await ensureSecret(paths.secret_key), 'hex');
  return { secret_key, host_token: await ensureSecret(paths.host_token) };
}

/** For the roles: what {@link ensureSecrets} has made. */
export async function readSecrets(paths: Paths, given_key: Buffer | null): Promise<Secrets> {
  const secret_key = given_key ?? Buffer.from(await requireSecret(paths.secret_key), 'hex');
  return { secret_key, host_token: await requireSecret(paths.host_token) };
}

async function requireSecret(path: string): Promise<string> {
  const secret = await readSecret(path);
  if (secret === undefined) throw new StartError(`${path} is missing; npm start makes it`);
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
      throw new StartError(`${path} is damaged; expected 64 hexadecimal digits. Bring it back from a backup`);
    }
    return text;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

/** For its owner alone; on disk, whole, before it has its name: a secret that is used once is never lost to a crash. */
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
