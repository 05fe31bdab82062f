/**
 * Prepares this machine for tests and benchmarks: `node bin/prepare-tests.ts [programs|image]`, by default both.
 *
 * - `programs`: installs the Debian packages, and builds the console and the documentation.
 * - `image`: builds the guest image in `.cache/images/debian-12`, which needs the programs.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { readEnv } from '../src/config/env.ts';
import { storeImage } from '../src/disk-format/image-objects.ts';
import { readHostImage } from '../src/host/images/host-images.ts';
import { ensureDebianPackages } from '../src/launcher/debian-packages.ts';
import { ensureGuestImage } from '../src/launcher/guest-image.ts';
import { refuse, StartError, sayOnStdout as say } from '../src/launcher/start-error.ts';
import { FolderStore } from '../src/object-store/folder-store.ts';

const project_dir = join(import.meta.dirname, '..');
const list_paths = ['debian-packages.txt', 'debian-packages-test.txt']
  .map((name) => join(project_dir, 'bin', name))
  .filter((path) => existsSync(path));

const interrupted = new AbortController();
process.once('SIGTERM', () => interrupted.abort());

async function preparePrograms(): Promise<void> {
  await ensureDebianPackages({ list_paths, env: readEnv(), is_root: process.getuid?.() === 0, say });
  await import('./build-pages.ts');
}

async function prepareImage(): Promise<void> {
  const image = await ensureGuestImage({
    build_script: join(project_dir, 'guest', 'build.sh'),
    images_dir: join(project_dir, '.cache', 'images', 'debian-12'),
    signal: interrupted.signal,
    say,
  });
  // Once for all tests, which link it into their object stores.
  const store = await FolderStore.open(join(project_dir, '.cache', 'image-objects'));
  const here = await readHostImage(image.dir, true);
  if (here) await storeImage(store, here.folder, here.manifest);
}

const [what] = process.argv.slice(2);
try {
  if (what !== 'image') await preparePrograms();
  if (what !== 'programs') await prepareImage();
} catch (error) {
  if (!(error instanceof StartError)) throw error;
  process.exitCode = refuse(error);
}
