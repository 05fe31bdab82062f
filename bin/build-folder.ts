/**
 * Builds a folder of files for browsers, `console/dist` or `site/dist`, unless it is up to date.
 *
 * - Beside each file stand its compressed forms. The server compresses nothing: it only chooses a form.
 * - The file `stamp` has the hash of all inputs. If the hash is the same, nothing is built.
 * - The files are made in a new folder, which then replaces the old folder. `stamp` is written last, so an interrupted
 *   build does not count.
 */
import { createHash } from 'node:crypto';
import {
  chmodSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { brotliCompress, constants, gzip } from 'node:zlib';

export const PROJECT = join(import.meta.dirname, '..');
/** What everything is built with and of. */
const LOCK = 'package-lock.json';
/** The engines that the documents promise. */
export const BROWSERS = ['chrome123', 'firefox121', 'safari17.5'];
/** They are compressed already. */
const COMPRESSED = /\.(?:png|br|gz)$/;

export interface FolderToBuild {
  /** Paths here are relative to the project. */
  readonly folder: string;
  readonly name: string;
  readonly inputs: readonly string[];
  readonly make: (folder: string) => Promise<void>;
}

/** All files of the project below `folder`. */
export function filesIn(folder: string): string[] {
  return readdirSync(join(PROJECT, folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(PROJECT.length + 1));
}

export async function buildFolder({ folder, name, inputs, make }: FolderToBuild): Promise<void> {
  const stamp = stampOf([...inputs, LOCK, 'bin/build-folder.ts']);
  const path = join(PROJECT, folder);
  if (isBuilt(path, stamp)) return;
  const began = performance.now();
  const made = mkdtempSync(`${path}.new-`);
  // As a checkout makes folders; mkdtemp makes it private.
  chmodSync(made, 0o755);
  try {
    await make(made);
    await compressIn(made);
    writeFileSync(join(made, 'stamp'), stamp);
    rmSync(path, { recursive: true, force: true });
    try {
      renameSync(made, path);
    } catch (error) {
      // Another one was quicker, with the same result.
      if (!isBuilt(path, stamp)) throw error;
    }
  } finally {
    rmSync(made, { recursive: true, force: true });
  }
  process.stdout.write(`berth: built ${name} (${((performance.now() - began) / 1000).toFixed(1)} s)\n`);
}

function stampOf(inputs: readonly string[]): string {
  const hash = createHash('sha256');
  for (const path of inputs.toSorted()) {
    hash
      .update(`${path}\0`)
      .update(readFileSync(join(PROJECT, path)))
      .update('\0');
  }
  return hash.digest('hex');
}

function isBuilt(folder: string, stamp: string): boolean {
  const path = join(folder, 'stamp');
  return existsSync(path) && readFileSync(path, 'utf8') === stamp;
}

async function compressIn(folder: string): Promise<void> {
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true });
  await Promise.all(
    entries
      .filter((entry) => entry.isFile() && !COMPRESSED.test(entry.name))
      .map(async (entry) => {
        const path = join(entry.parentPath, entry.name);
        const bytes = readFileSync(path);
        const quality = { params: { [constants.BROTLI_PARAM_QUALITY]: 9 } };
        writeFileSync(`${path}.br`, await promisify(brotliCompress)(bytes, quality));
        writeFileSync(`${path}.gz`, await promisify(gzip)(bytes, { level: 9 }));
      }),
  );
}
