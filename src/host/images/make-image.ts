/**
 * Makes an image in this host's folder from a user's file: detects the file's type, creates or extracts the root file
 * system, installs Berth's files and boots the image as a check. The image is published last, atomically.
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import {
  chmod,
  link,
  mkdir,
  mkdtemp,
  open,
  rename,
  rm,
  stat,
  statfs,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { IMAGE_FILES, type ImageManifest } from '../../disk-format/image-objects.ts';
import { present } from '../../shared/assert.ts';
import type { Jail } from '../qemu/confinement.ts';
import type { Accelerator } from '../qemu/qemu-command.ts';
import { isQcow2, looksLikeDisk, rootOfDisk } from './disk-file.ts';
import { type LocalImage, readHostImage } from './host-images.ts';
import { checkBoot, installInMachine } from './image-machines.ts';
import { ImageTree } from './image-tree.ts';
import { layerEntries, ociLayers } from './oci-layout.ts';
import { readTar, UnusableImageError } from './read-tar.ts';
import { compressionOf, headOf, unpacked } from './unpacked.ts';

const run = promisify(execFile);
const MIB = 2 ** 20;
const GIB = 2 ** 30;
/** Space for kernel modules, Berth's files, and first use. */
const ROOM_BYTES = 384 * MIB;
/** Maximum overhead of a file or folder: the rest of its last block, an inode, its name. */
const ENTRY_BYTES = 6 * 1024;
/** One free inode for this many bytes, like mke2fs, besides the archive's inodes. */
const INODE_RATIO_BYTES = 16 * 1024;
/** The file system can grow to this many 4 KiB blocks: 1024 GiB. */
const MAX_BLOCKS = 1024 * 262_144;
/** Space to leave free on the host's disk. */
const SPARE_BYTES = GIB;

export interface MakeImageOptions {
  readonly id: string;
  /** Path of a tarball, an OCI layout (folder or tarball), or a raw or qcow2 disk. */
  readonly given: string;
  readonly images_dir: string;
  readonly base: LocalImage;
  readonly max_bytes: number;
  readonly accel: Accelerator;
  readonly qemu_binary: string;
  readonly qemu_img_binary: string;
  readonly run_as: { readonly uid: number; readonly gid: number } | null;
  readonly jail: Jail | null;
  readonly say: (step: string) => void;
  readonly signal: AbortSignal;
}

/** @throws UnusableImageError when the input cannot become an image */
export async function makeOwnImage(options: MakeImageOptions): Promise<LocalImage> {
  const { id, images_dir, base, say } = options;
  const work_dir = await mkdtemp(join(images_dir, '.add-'));
  await chmod(work_dir, 0o711);
  try {
    const rootfs_path = await rootOf(options, work_dir);
    await chmod(rootfs_path, 0o600);
    say('installing what Berth needs');
    await installInMachine({ ...options, rootfs_path });
    say('checksums');
    const manifest = await manifestOf(id, base, rootfs_path);
    const ready = join(work_dir, 'ready');
    await mkdir(ready);
    // Each VM's user reads it, so the umask must not matter.
    await chmod(ready, 0o755);
    await chmod(rootfs_path, 0o444);
    await rename(rootfs_path, join(ready, 'rootfs.img'));
    await link(base.kernel_path, join(ready, 'vmlinuz'));
    await link(base.initrd_path, join(ready, 'initrd.img'));
    await writeFile(join(ready, 'manifest.json'), `${JSON.stringify(manifest)}\n`, {
      flush: true,
    });
    await chmod(join(ready, 'manifest.json'), 0o444);
    const image = present(await readHostImage(ready, true), 'the image just made');
    say('booting it as a check');
    await checkBoot({ ...options, image, work_dir });
    return await publish(image, images_dir);
  } finally {
    await rm(work_dir, { recursive: true, force: true });
  }
}

/** Publishes the image, which new disks then use. */
async function publish(image: LocalImage, images_dir: string): Promise<LocalImage> {
  const name = image.version.slice(0, 12);
  const folder = join(images_dir, image.id, name);
  await mkdir(join(images_dir, image.id), { recursive: true });
  await chmod(join(images_dir, image.id), 0o711);
  if (!(await readHostImage(folder, true))) {
    await rm(folder, { recursive: true, force: true });
    for (const file of [...IMAGE_FILES, '.']) await sync(join(image.folder, file));
    await rename(image.folder, folder);
  }
  const current = join(images_dir, image.id, 'current');
  await rm(`${current}.new`, { force: true });
  await symlink(name, `${current}.new`);
  await rename(`${current}.new`, current);
  for (const parent of [join(images_dir, image.id), images_dir]) await sync(parent);
  return present(await readHostImage(folder, true), 'the image in its place');
}

async function sync(path: string): Promise<void> {
  await using handle = await open(path, 'r');
  await handle.sync();
}

/** Makes the root file system of the input as a file in `work_dir`, which other users may search. @throws UnusableImageError */
export async function rootOf(
  options: Pick<MakeImageOptions, 'given' | 'max_bytes' | 'run_as' | 'jail' | 'say'>,
  work_dir: string,
): Promise<string> {
  const { given, max_bytes, say } = options;
  const { bavail, bsize } = await statfs(work_dir);
  const free = bavail * bsize - SPARE_BYTES;
  // It is unpacked, then copied into the file system.
  const most = Math.min(max_bytes, Math.floor(free / 2));
  if (most < ROOM_BYTES)
    throw new UnusableImageError(`${work_dir} has too little free space to make an image`);
  if ((await stat(given)).isDirectory()) return fromLayout(given, work_dir, most, say);
  const head = await headOf(given);
  if (head.length < 1_100) throw new UnusableImageError('the file is too short');
  if (isQcow2(head) || (compressionOf(head) === 'none' && looksLikeDisk(head))) {
    say('reading the disk');
    const { run_as, jail } = options;
    return rootOfDisk(given, head, { work_dir, max_bytes: most, run_as, jail });
  }
  say('unpacking');
  const tree = await newTree(work_dir, 'unpacked', most);
  await using archive = await open(given, 'r');
  await tree.addLayer(readTar(unpacked(archive)), { whiteouts: false });
  const layout = tree.has('oci-layout') === 'file' && tree.has('index.json') === 'file';
  const folder = await closedFolder(work_dir, 'tree');
  await tree.writeTo(folder);
  return layout ? fromLayout(folder, work_dir, most, say) : fileSystem(folder, tree, work_dir, say);
}

async function fromLayout(
  folder: string,
  work_dir: string,
  most: number,
  say: (step: string) => void,
): Promise<string> {
  const layers = await ociLayers(folder);
  const tree = await newTree(work_dir, 'layers', most);
  for (const [i, layer] of layers.entries()) {
    say(`unpacking layer ${i + 1} of ${layers.length}`);
    await tree.addLayer(layerEntries(folder, layer), { whiteouts: true });
  }
  const root = await closedFolder(work_dir, 'root');
  await tree.writeTo(root);
  return fileSystem(root, tree, work_dir, say);
}

async function newTree(work_dir: string, name: string, max_bytes: number): Promise<ImageTree> {
  const folder = await closedFolder(work_dir, name);
  await mkdir(folder);
  return new ImageTree({ folder, max_bytes });
}

/**
 * A path below a private folder, because the unpacked files may have set-id bits, and the folder itself gets the archive's
 * mode.
 */
async function closedFolder(work_dir: string, name: string): Promise<string> {
  const closed = join(work_dir, 'closed');
  await mkdir(closed, { recursive: true, mode: 0o700 });
  return join(closed, name);
}

/** Makes the same file system as debian-12's; guest/build.sh explains the options. */
async function fileSystem(
  root: string,
  { unpacked_bytes, entries }: ImageTree,
  work_dir: string,
  say: (step: string) => void,
): Promise<string> {
  say('writing the file system');
  const path = join(work_dir, 'rootfs.img');
  const needed = unpacked_bytes * 1.25 + entries * ENTRY_BYTES + ROOM_BYTES;
  const bytes = Math.ceil(needed / (64 * MIB)) * 64 * MIB;
  const inodes = Math.ceil(bytes / INODE_RATIO_BYTES) + entries;
  const extended = `root_owner=0:0,resize=${MAX_BLOCKS},assume_storage_prezeroed=1`;
  const words = ['-q', '-F', '-t', 'ext4', '-b', '4096', '-m', '0', '-e', 'remount-ro', '-L', 'berth-root'];
  await run('truncate', ['-s', String(bytes), path]);
  try {
    const features = ['-J', 'size=32', '-N', String(inodes), '-O', '^64bit', '-E', extended];
    await run('mke2fs', [...words, ...features, '-d', root, path], {
      env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' },
    });
  } catch (cause) {
    const reason = cause instanceof Error && 'stderr' in cause ? String(cause.stderr).trim().slice(-300) : '';
    throw new UnusableImageError(`its file system could not be written: ${reason}`, { cause });
  }
  await rm(root, { recursive: true, force: true });
  return path;
}

async function manifestOf(id: string, { manifest }: LocalImage, rootfs_path: string): Promise<ImageManifest> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(rootfs_path, { highWaterMark: MIB })) hash.update(chunk);
  const version = hash.digest('hex');
  return {
    id,
    version,
    kernel_release: manifest.kernel_release,
    size_bytes: (await stat(rootfs_path)).size,
    user: 'root',
    files: { ...manifest.files, 'rootfs.img': version },
  };
}
