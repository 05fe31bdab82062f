/** Copies base images into a backup and out of it: whole, sparse, and with every file checked against its manifest. */
import { lstat, mkdir, readFile, rm, symlink } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { listHostImages } from '../host/image/host-images.ts';
import { runCommand } from '../launch/run-command.ts';
import { errnoOf } from '../lib/errors.ts';
import { fileSha256 } from './line-files.ts';
import { BackupError, type BackupImage } from './manifest.ts';

/** The folders of images with these versions, and of the newest ones. */
export async function imagesOf(
  images_dir: string,
  wanted: readonly { readonly image: string; readonly version: string }[],
): Promise<{ readonly images: BackupImage[]; readonly missing: string[] }> {
  const found = await listHostImages(images_dir);
  const images = found
    .filter(
      ({ id, version, newest }) =>
        newest || wanted.some((each) => each.image === id && each.version === version),
    )
    .map(({ id, version, folder, newest }) => ({ id, version, name: basename(folder), newest }));
  const missing = wanted
    .filter(({ image, version }) => !images.some((each) => each.id === image && each.version === version))
    .map(({ image, version }) => `${image} ${version.slice(0, 12)}`);
  return { images, missing };
}

/** Returns the image's damage, if any, and then removes the copy. @throws BackupError when it cannot be copied */
export async function copyImage(
  from_dir: string,
  to_dir: string,
  image: BackupImage,
): Promise<string | null> {
  const from = join(from_dir, image.id, image.name);
  if ((await lstat(from).catch(() => undefined)) === undefined) return 'it is missing';
  const to = join(to_dir, image.id, image.name);
  await mkdir(dirname(to), { recursive: true, mode: 0o711 });
  const copied = await runCommand('cp', [
    '-R',
    '--sparse=always',
    '--preserve=mode,timestamps',
    '-T',
    from,
    to,
  ]);
  if (copied.code !== 0)
    throw new BackupError(`${from} could not be copied: ${copied.stderr.trim()}`, 'state');
  const problem = await imageProblem(to, image.version);
  if (problem !== null) await rm(to, { recursive: true });
  return problem;
}

/** Makes it current for new disks. */
export async function makeNewest(images_dir: string, { id, name }: BackupImage): Promise<void> {
  const current = join(images_dir, id, 'current');
  await rm(current, { force: true });
  await symlink(name, current);
}

async function imageProblem(folder: string, version: string): Promise<string | null> {
  try {
    const manifest = JSON.parse(await readFile(join(folder, 'manifest.json'), 'utf8')) as {
      readonly files?: Readonly<Record<string, string>>;
    };
    if (manifest.files?.['rootfs.img'] !== version) return 'it is another image than it was';
    for (const [name, sha256] of Object.entries(manifest.files)) {
      if ((await fileSha256(join(folder, name))) !== sha256) return `${name} is damaged`;
    }
    return null;
  } catch (error) {
    if (error instanceof SyntaxError) return 'manifest.json is damaged';
    if (errnoOf(error) === 'ENOENT') return 'a file of it is missing';
    throw error;
  }
}
