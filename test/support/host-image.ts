/** Writes an image that cannot boot into a host's folder, for tests that only read, store and copy images. */
import { createHash } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { IMAGE_FILES, type ImageManifest } from '../../src/disk-format/image-objects.ts';

/** Creates `folder` with the image. */
export async function writeHostImage(folder: string, id: string, rootfs: Buffer): Promise<ImageManifest> {
  const contents = {
    vmlinuz: Buffer.from('kernel'),
    'initrd.img': Buffer.from('initrd'),
    'rootfs.img': rootfs,
  };
  const hashOf = (name: keyof typeof contents) => createHash('sha256').update(contents[name]).digest('hex');
  const manifest: ImageManifest = {
    id,
    version: 'recipe',
    kernel_release: '6.1',
    size_bytes: rootfs.length,
    user: 'root',
    files: {
      vmlinuz: hashOf('vmlinuz'),
      'initrd.img': hashOf('initrd.img'),
      'rootfs.img': hashOf('rootfs.img'),
    },
  };
  await mkdir(folder, { recursive: true });
  for (const name of IMAGE_FILES) await writeFile(join(folder, name), contents[name]);
  await writeFile(join(folder, 'manifest.json'), JSON.stringify(manifest));
  return manifest;
}
