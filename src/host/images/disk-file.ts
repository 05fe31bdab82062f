/**
 * Extracts the root file system of a raw or qcow2 disk: an ext4 on the whole disk or in a partition. The host only
 * finds and copies the file system; it is mounted only in a VM that is made for this (image-machines.ts).
 */
import { chown, copyFile, type FileHandle, open, truncate } from 'node:fs/promises';
import { join } from 'node:path';
import { parseQcow2Header, qemuImg } from '../disk/overlay-files.ts';
import type { Jail } from '../qemu/confinement.ts';
import { UnusableImageError } from './read-tar.ts';
import { headOf } from './unpacked.ts';

const SECTOR = 512;
const MIB = 2 ** 20;
const PIECE_BYTES = 4 * MIB;
const CONVERT_MS = 30 * 60_000;
/** GPT types of a Linux file system and of an x86-64 root (Discoverable Partitions Specification). */
const LINUX = 'af3dc60f838472478e793d69d8477de4';
const LINUX_ROOT = 'e3bc684fcde8b14d96e7fbcaf984b709';

export interface Range {
  readonly offset: number;
  readonly length: number;
}

export interface DiskOptions {
  /** An existing private folder. */
  readonly work_dir: string;
  readonly max_bytes: number;
  /** The user of qemu-img, because it reads an untrusted file. */
  readonly run_as: { readonly uid: number; readonly gid: number } | null;
  readonly jail: Jail | null;
}

export function isQcow2(head: Buffer): boolean {
  return head.toString('latin1', 0, 4) === 'QFI\xfb';
}

export function looksLikeDisk(head: Buffer): boolean {
  return head.readUInt16LE(510) === 0xaa55 || head.readUInt16LE(1_080) === 0xef53;
}

/** Copies the root file system of a disk to a file. @throws UnusableImageError */
export async function rootOfDisk(path: string, head: Buffer, options: DiskOptions): Promise<string> {
  const raw = isQcow2(head) ? await toRaw(path, options) : path;
  await using disk = await open(raw, 'r');
  const { size } = await disk.stat();
  if (size > options.max_bytes) throw tooLarge(options.max_bytes);
  const range = await findRoot(disk, size);
  const rootfs = join(options.work_dir, 'rootfs.img');
  await copyRange(disk, range, rootfs);
  return rootfs;
}

/** qemu-img reads a copy with a checked header, as an unprivileged user, so it opens no other file of this host. */
async function toRaw(path: string, { work_dir, max_bytes, run_as, jail }: DiskOptions): Promise<string> {
  const copy = join(work_dir, 'given.qcow2');
  const raw = join(work_dir, 'given.raw');
  await copyFile(path, copy);
  const size_bytes = await sizeOfWhole(copy, max_bytes);
  await (await open(raw, 'wx', 0o600)).close();
  await truncate(raw, size_bytes);
  if (run_as) for (const each of [copy, raw]) await chown(each, run_as.uid, run_as.gid);
  try {
    await qemuImg(['convert', '-f', 'qcow2', '-O', 'raw', '-S', '4k', '-n', '--target-is-zero', copy, raw], {
      ...{ qemu_img_binary: 'qemu-img', user: run_as, jail, timeout_ms: CONVERT_MS },
      files: { reads: [copy], writes: [raw] },
    });
  } catch (cause) {
    const reason =
      cause instanceof Error && 'stderr' in cause ? String(cause.stderr).trim().slice(0, 300) : '';
    throw new UnusableImageError(`the qcow2 cannot be read: ${reason}`, { cause });
  }
  return raw;
}

/** The virtual size of a qcow2 file. @throws UnusableImageError when it needs other files or is larger than `max_bytes` */
async function sizeOfWhole(path: string, max_bytes: number): Promise<number> {
  const header = parseQcow2Header(await headOf(path));
  if (!header || (header.version !== 2 && header.version !== 3))
    throw new UnusableImageError('its qcow2 version is unknown');
  if (header.has_backing_file) {
    throw new UnusableImageError('the qcow2 has a backing file; convert it first: qemu-img convert -O qcow2');
  }
  if (header.has_data_file)
    throw new UnusableImageError(
      'the qcow2 keeps its data in another file; convert it to a single file first',
    );
  if (header.is_encrypted) throw new UnusableImageError('the qcow2 is encrypted');
  if (header.size_bytes > max_bytes) throw tooLarge(max_bytes);
  return header.size_bytes;
}

/** Finds the root file system. @throws UnusableImageError listing the file systems found instead */
export async function findRoot(disk: FileHandle, size: number): Promise<Range> {
  const head = await readAt(disk, 0, 2 * SECTOR);
  const candidates =
    head.readUInt16LE(510) !== 0xaa55
      ? [{ offset: 0, length: size }]
      : head.toString('latin1', SECTOR, SECTOR + 8) === 'EFI PART'
        ? await gptRanges(disk, head)
        : mbrRanges(head);
  for (const range of [...candidates, { offset: 0, length: size }]) {
    const within = range.offset >= 0 && range.length > 0 && range.offset + range.length <= size;
    // Partitions after it, like /boot, may have any form.
    if (within && (await isExt4(disk, range))) return range;
  }
  throw new UnusableImageError(
    'the disk has no ext4 root, neither on the whole of it nor in a partition (other file systems, LVM and encryption are not taken)',
  );
}

/** @throws UnusableImageError for an ext4 that cannot grow to a disk's size */
async function isExt4(disk: FileHandle, { offset, length }: Range): Promise<boolean> {
  const block = await readAt(disk, offset + 1_024, 1_024);
  if (block.readUInt16LE(56) !== 0xef53) return false;
  const block_bytes = 1_024 << block.readUInt32LE(24);
  if (block_bytes !== 4_096) {
    throw new UnusableImageError(
      `the ext4 has blocks of ${block_bytes} bytes; 4096 are needed (mke2fs -b 4096)`,
    );
  }
  if (block.readUInt32LE(4) * block_bytes > length)
    throw new UnusableImageError('the ext4 is larger than its disk');
  return true;
}

/** Larger partitions first, because a /boot is small. */
function mbrRanges(head: Buffer): Range[] {
  return [0, 1, 2, 3]
    .map((i) => head.subarray(446 + 16 * i, 462 + 16 * i))
    .filter((entry) => entry[4] === 0x83)
    .map((entry) => ({ offset: entry.readUInt32LE(8) * SECTOR, length: entry.readUInt32LE(12) * SECTOR }))
    .sort((a, b) => b.length - a.length);
}

/** Root partitions first, then larger ones. */
async function gptRanges(disk: FileHandle, head: Buffer): Promise<Range[]> {
  const at = Number(head.readBigUInt64LE(SECTOR + 72)) * SECTOR;
  const count = head.readUInt32LE(SECTOR + 80);
  const bytes = head.readUInt32LE(SECTOR + 84);
  if (count > 256 || bytes !== 128 || !Number.isSafeInteger(at)) {
    throw new UnusableImageError('its partition table cannot be read');
  }
  const table = await readAt(disk, at, count * bytes);
  const found = Array.from({ length: count }, (_, i) => table.subarray(i * bytes, (i + 1) * bytes)).flatMap(
    (entry) => {
      const type = entry.toString('hex', 0, 16);
      if (type !== LINUX && type !== LINUX_ROOT) return [];
      const first = Number(entry.readBigUInt64LE(32));
      const last = Number(entry.readBigUInt64LE(40));
      return [{ root: type === LINUX_ROOT, offset: first * SECTOR, length: (last - first + 1) * SECTOR }];
    },
  );
  return found.sort((a, b) => Number(b.root) - Number(a.root) || b.length - a.length);
}

/** Copies sparsely, rounded up to whole MiB like a disk. */
async function copyRange(disk: FileHandle, { offset, length }: Range, path: string): Promise<void> {
  await using file = await open(path, 'wx', 0o600);
  await file.truncate(Math.ceil(length / MIB) * MIB);
  const buffer = Buffer.alloc(PIECE_BYTES);
  const zeroes = Buffer.alloc(PIECE_BYTES);
  for (let done = 0; done < length; ) {
    const { bytesRead } = await disk.read(buffer, 0, Math.min(PIECE_BYTES, length - done), offset + done);
    if (bytesRead === 0) return;
    const piece = buffer.subarray(0, bytesRead);
    if (!piece.equals(zeroes.subarray(0, bytesRead))) {
      for (let put = 0; put < bytesRead; )
        put += (await file.write(piece, put, bytesRead - put, done + put)).bytesWritten;
    }
    done += bytesRead;
  }
}

/** Returns zeroes after the end. */
async function readAt(disk: FileHandle, at: number, length: number): Promise<Buffer> {
  const buffer = Buffer.alloc(length);
  for (let done = 0; done < length; ) {
    const { bytesRead } = await disk.read(buffer, done, length - done, at + done);
    if (bytesRead === 0) break;
    done += bytesRead;
  }
  return buffer;
}

function tooLarge(max_bytes: number): UnusableImageError {
  return new UnusableImageError(`the disk is larger than ${Math.floor(max_bytes / 2 ** 30)} GiB`);
}
