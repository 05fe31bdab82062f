/**
 * The images in a host's folder: `<image id>/<12 digits>/` with manifest, kernel, initramfs and root file system. A folder appears
 * atomically and never changes, because VMs and overlays use its files. A folder that has lost a file, or whose root file system
 * differs in size from its manifest, is no image.
 */
import { readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { IMAGE_FILES, type ImageManifest, isImageManifest } from '../../disk-format/image-manifest.ts';
import { errnoOf } from '../../shared/errors.ts';

export interface HostImage {
  readonly id: string;
  /** SHA-256 of the root file system: two builds of one recipe differ, and a disk belongs to exactly one. */
  readonly version: string;
  readonly manifest: ImageManifest;
  readonly folder: string;
  readonly kernel_path: string;
  readonly initrd_path: string;
  readonly rootfs_path: string;
  readonly size_bytes: number;
  readonly newest: boolean;
}

/** The image cannot be used. The message names the missing parts and the remedy. */
export class ImageError extends Error {
  override name = 'ImageError';
}

async function namesIn(folder: string): Promise<string[]> {
  try {
    return (await readdir(folder, { withFileTypes: true }))
      .filter((entry) => entry.isDirectory() && !entry.name.startsWith('.'))
      .map((entry) => entry.name);
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return [];
    throw error;
  }
}

/** null: there is none, or it is incomplete. */
export async function readHostImage(folder: string, newest: boolean): Promise<HostImage | null> {
  try {
    const manifest: unknown = JSON.parse(await readFile(join(folder, 'manifest.json'), 'utf8'));
    if (!isImageManifest(manifest)) return null;
    const sizes = await Promise.all(IMAGE_FILES.map(async (name) => (await stat(join(folder, name))).size));
    const rootfs_bytes = sizes[IMAGE_FILES.indexOf('rootfs.img')];
    if (sizes.includes(0) || rootfs_bytes !== manifest.size_bytes) return null;
    return {
      id: manifest.id,
      version: manifest.files['rootfs.img'],
      manifest,
      folder,
      size_bytes: manifest.size_bytes,
      kernel_path: join(folder, 'vmlinuz'),
      initrd_path: join(folder, 'initrd.img'),
      rootfs_path: join(folder, 'rootfs.img'),
      newest,
    };
  } catch (error) {
    if (error instanceof SyntaxError || errnoOf(error) !== undefined) return null;
    throw error;
  }
}

/** All complete images. */
export async function listHostImages(images_dir: string): Promise<HostImage[]> {
  const found: HostImage[] = [];
  for (const id of await namesIn(images_dir)) {
    const current = await readFile(join(images_dir, id, 'current', 'manifest.json'), 'utf8').catch(() => '');
    for (const name of await namesIn(join(images_dir, id))) {
      const image = await readHostImage(join(images_dir, id, name), false);
      if (image?.id === id) found.push({ ...image, newest: current.includes(image.version) });
    }
  }
  return found;
}

/** The image of exactly `version`, or the newest if that is null. null: it is not on this host. */
export async function findHostImage(
  images_dir: string,
  id: string,
  version: string | null,
): Promise<HostImage | null> {
  const images = (await listHostImages(images_dir)).filter((image) => image.id === id);
  if (version !== null) return images.find((each) => each.version === version) ?? null;
  return images.find((each) => each.newest) ?? images[0] ?? null;
}
