/**
 * Checks for the Debian packages that Berth needs, and installs the missing ones if it runs as root.
 * `bin/debian-packages*.txt` lists each package with a file or command that proves its presence, so a check costs a few
 * stat calls and no query of the package database.
 */
import { constants } from 'node:fs';
import { access, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { assert } from '../shared/assert.ts';
import { runCommand } from './run-command.ts';
import { type Say, StartError } from './start-error.ts';

export interface DebianPackage {
  readonly name: string;
  /** A command, or the absolute path of a file. */
  readonly proof: string;
}

/** Root's programs are not on everyone's PATH. */
const ALWAYS_SEARCHED = ['/usr/sbin', '/usr/bin', '/sbin', '/bin'];

/** Lines of `<package> <proof>`; `#` begins a comment. */
export function parsePackageList(text: string): readonly DebianPackage[] {
  return text
    .split('\n')
    .map((line) => line.replace(/#.*/, '').trim())
    .filter((line) => line !== '')
    .map((line) => {
      const [name, proof, ...rest] = line.split(/\s+/);
      assert(name !== undefined && proof !== undefined && rest.length === 0, `package list: ${line}`);
      return { name, proof };
    });
}

async function exists(path: string, mode: number): Promise<boolean> {
  return access(path, mode).then(
    () => true,
    () => false,
  );
}

async function isInstalled(proof: string, search_path: string): Promise<boolean> {
  if (proof.startsWith('/')) return exists(proof, constants.F_OK);
  for (const folder of [
    ...search_path.split(':').filter((part) => part.startsWith('/')),
    ...ALWAYS_SEARCHED,
  ]) {
    if (await exists(join(folder, proof), constants.X_OK)) return true;
  }
  return false;
}

/** `search_path` is the environment's PATH. */
export async function missingPackages(
  list_paths: readonly string[],
  search_path: string,
): Promise<readonly string[]> {
  const missing: string[] = [];
  for (const path of list_paths) {
    for (const { name, proof } of parsePackageList(await readFile(path, 'utf8'))) {
      if (!missing.includes(name) && !(await isInstalled(proof, search_path))) missing.push(name);
    }
  }
  return missing;
}

export interface EnsurePackagesOptions {
  readonly list_paths: readonly string[];
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly is_root: boolean;
  readonly say: Say;
}

/** As root, installs the missing packages. Otherwise throws {@link StartError} with the exact command. */
export async function ensureDebianPackages(options: EnsurePackagesOptions): Promise<void> {
  const { list_paths, env, is_root, say } = options;
  const search_path = env['PATH'] ?? '';
  const missing = await missingPackages(list_paths, search_path);
  if (missing.length === 0) return;
  const install = `apt-get install -y --no-install-recommends ${missing.join(' ')}`;
  if (!(await isInstalled('apt-get', search_path))) {
    throw new StartError(
      `programs are missing, and this machine has no apt-get. Install the contents of these Debian packages: ${missing.join(' ')}`,
    );
  }
  if (!is_root) {
    throw new StartError(`Debian packages are missing. Run: sudo apt-get update && sudo ${install}`);
  }
  say(`installing Debian packages: ${missing.join(' ')}`);
  const wait = ['-o', 'DPkg::Lock::Timeout=300'];
  await apt([...wait, 'update'], env, 'apt-get update');
  await apt([...wait, 'install', '-y', '--no-install-recommends', ...missing], env, install);
  const still = await missingPackages(list_paths, search_path);
  if (still.length > 0) {
    throw new StartError(`these Debian packages are installed but incomplete: ${still.join(' ')}`, 1);
  }
}

async function apt(args: readonly string[], env: EnsurePackagesOptions['env'], shown: string): Promise<void> {
  const result = await runCommand('apt-get', args, {
    env: { ...env, DEBIAN_FRONTEND: 'noninteractive' },
    output: 'passed on',
  });
  if (result.code !== 0) {
    throw new StartError(`${shown} failed (${result.signal ?? `exit code ${result.code}`}), see above`, 1);
  }
}
