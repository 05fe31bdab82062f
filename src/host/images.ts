/**
 * The images in a host's folder: `<image id>/<version's first 12 digits>/` with manifest, kernel, initramfs and
 * root file system. A folder appears whole and never changes, because running VMs and overlays use its files.
 */
import { access, constants, readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf } from '../lib/errors.ts';

export interface HostImage {
  readonly id: string;
  /** SHA-256 of the root file system: two builds of one recipe differ, and a disk belongs to exactly one. */
  readonly version: string;
  readonly kernel_path: string;
  readonly initrd_path: string;
  readonly rootfs_path: string;
  readonly size_bytes: number;
  readonly newest: boolean;
}

/** The image cannot be used; the message names the file and what to do. */
export class ImageError extends Error {
  override name = 'ImageError';
}

interface Manifest {
  readonly id: string;
  readonly size_bytes: number;
  /** SHA-256 of each file. */
  readonly files: { readonly 'rootfs.img': string };
}

function isManifest(value: unknown): value is Manifest {
  if (typeof value !== 'object' || value === null) return false;
  const { id, files, size_bytes } = value as Record<string, unknown>;
  const rootfs =
    typeof files === 'object' && files !== null && 'rootfs.img' in files ? files['rootfs.img'] : null;
  return typeof id === 'string' && /^[0-9a-f]{64}$/.test(String(rootfs)) && Number.isSafeInteger(size_bytes);
}

async function namesIn(folder: string): Promise<string[]> {
  try {
    return (await readdir(folder, { withFileTypes: true }))
      .filter((entry) => entry.isDirectory())
      .map((entry) => entry.name);
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return [];
    throw error;
  }
}

async function readImage(folder: string, newest: boolean): Promise<HostImage | null> {
  try {
    const manifest: unknown = JSON.parse(await readFile(join(folder, 'manifest.json'), 'utf8'));
    if (!isManifest(manifest)) return null;
    return {
      id: manifest.id,
      version: manifest.files['rootfs.img'],
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

/** Every image with a readable manifest. */
export async function listHostImages(images_dir: string): Promise<HostImage[]> {
  const found: HostImage[] = [];
  for (const id of await namesIn(images_dir)) {
    const current = await readFile(join(images_dir, id, 'current', 'manifest.json'), 'utf8').catch(() => '');
    for (const name of await namesIn(join(images_dir, id))) {
      const image = await readImage(join(images_dir, id, name), false);
      if (image) found.push({ ...image, newest: current.includes(image.version) });
    }
  }
  return found;
}

/**
 * The image of a disk: of exactly `version` where a generation is based on it, else the newest.
 * @throws ImageError naming what is missing
 */
export async function findHostImage(
  images_dir: string,
  id: string,
  version: string | null,
): Promise<HostImage> {
  const images = (await listHostImages(images_dir)).filter((image) => image.id === id);
  const image =
    version === null
      ? (images.find((each) => each.newest) ?? images[0])
      : images.find((each) => each.version === version);
  if (!image) {
    const what =
      version === null
        ? `no image "${id}"`
        : `no image "${id}" of version ${version.slice(0, 12)}, on which the disk is based,`;
    throw new ImageError(
      `${what} is in ${images_dir}; start Berth again to have it built, or bring the folder back`,
    );
  }
  for (const path of [image.kernel_path, image.initrd_path, image.rootfs_path]) {
    await access(path, constants.R_OK).catch((cause: unknown) => {
      throw new ImageError(
        `${path} is missing or not readable: remove its folder and start Berth again to have it built`,
        { cause },
      );
    });
  }
  return image;
}
