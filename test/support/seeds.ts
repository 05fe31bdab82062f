/**
 * Fills the data folder of a new installation for tests, so that tests do not repeat slow work: the migrated database,
 * the guest image, its pieces in the object store, and the templates that earlier installations made.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { copyFile, link, mkdir, mkdtemp, readdir, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Paths } from '../../src/config/paths.ts';
import { type ImageManifest, imagePrefix } from '../../src/disk-format/image-objects.ts';
import { MAX_AGE_MS } from '../../src/host/vm/template-files.ts';
import { ensureSecrets, makeDataFolder } from '../../src/launcher/data-folder.ts';
import { errnoOf } from '../../src/shared/errors.ts';
import { copyCluster } from './cluster-template.ts';

const CACHE = join(import.meta.dirname, '..', '..', '.cache');
const TEMPLATES = join(CACHE, 'test-templates');
const TEMPLATE_KEY = /^[0-9a-f]{32}$/;
const DESCRIPTION = 'template.json';

/** Links the image of BERTH_TEST_IMAGE_DIR. Without it the launcher finds or builds one. */
export async function linkTestImage(paths: Paths): Promise<void> {
  const seed = process.env['BERTH_TEST_IMAGE_DIR'];
  if (seed === undefined) return;
  const manifest = JSON.parse(readFileSync(join(seed, 'manifest.json'), 'utf8')) as ImageManifest;
  const { id, version, files } = manifest;
  const folder = join(paths.debian_12, version.slice(0, 12));
  await mkdir(folder, { recursive: true, mode: 0o755 });
  // On another file system the launcher copies the image from the project's cache.
  for (const file of await readdir(seed)) {
    await link(join(seed, file), join(folder, file)).catch(() => undefined);
  }
  const stored = join(CACHE, 'image-objects', imagePrefix(id, files['rootfs.img']));
  const pieces = join(paths.objects, imagePrefix(id, files['rootfs.img']));
  const names = listOrNothing(stored);
  if (names.length === 0) return;
  await mkdir(pieces, { recursive: true, mode: 0o700 });
  for (const name of names) await linkOrCopy(join(stored, name), join(pieces, name));
}

/** Copies a migrated database and creates secrets, as in an installation that has run and has no users. */
export async function copyDatabase(paths: Paths): Promise<void> {
  await makeDataFolder(paths);
  await ensureSecrets(paths, null, false);
  await mkdir(paths.postgres, { recursive: true, mode: 0o711 });
  await copyCluster(join(paths.postgres, 'cluster'));
}

/** Links the kept templates that are not too old. The host ignores those of another image or QEMU. */
export async function linkTemplates({ templates }: Pick<Paths, 'templates'>): Promise<void> {
  for (const key of templateKeys(TEMPLATES)) {
    const kept = join(TEMPLATES, key);
    const description = await stat(join(kept, DESCRIPTION)).catch(() => undefined);
    // Another test has just removed it as too old.
    if (!description) continue;
    if (Date.now() - description.mtimeMs > MAX_AGE_MS) await rm(kept, { recursive: true, force: true });
    else await linkTemplate(kept, join(templates, key)).catch(() => undefined);
  }
}

/** Keeps the templates that this installation made. */
export async function keepTemplates({ templates }: Pick<Paths, 'templates'>): Promise<void> {
  const known = templateKeys(TEMPLATES);
  for (const key of templateKeys(templates).filter((made) => !known.includes(made))) {
    await mkdir(TEMPLATES, { recursive: true, mode: 0o700 });
    const folder = await mkdtemp(join(TEMPLATES, 'new-'));
    try {
      await linkTemplate(join(templates, key), folder);
      await rename(folder, join(TEMPLATES, key));
    } catch {
      // Another test was first, or the template was removed meanwhile.
      await rm(folder, { recursive: true, force: true });
    }
  }
}

/** Links the memory and copies the description, which records each use. */
async function linkTemplate(from: string, to: string): Promise<void> {
  await mkdir(to, { recursive: true, mode: 0o700 });
  const files = (await readdir(from)).filter((file) => file !== DESCRIPTION);
  for (const file of files) await linkOrCopy(join(from, file), join(to, file));
  await copyFile(join(from, DESCRIPTION), join(to, DESCRIPTION));
}

/** Copies a file that is on another file system. */
async function linkOrCopy(from: string, to: string): Promise<void> {
  await link(from, to).catch((error: unknown) => {
    if (errnoOf(error) !== 'EXDEV') throw error;
    return copyFile(from, to);
  });
}

function templateKeys(folder: string): string[] {
  return listOrNothing(folder).filter((name) => TEMPLATE_KEY.test(name));
}

export function listOrNothing(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}
