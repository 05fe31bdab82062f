/** Inspects and converts disk files with qemu-img. */
import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { resolve } from 'node:path';
import { parseQcow2Header, QCOW2_HEADER_BYTES, qemuImg } from '../host/disk/overlay-files.ts';
import { openJail } from '../host/qemu/confinement.ts';
import { errnoOf, messageOf } from '../shared/errors.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';

const DISK_FORMATS = ['raw', 'qcow2'] as const;
export type DiskFormat = (typeof DISK_FORMATS)[number];

export interface DiskImage {
  readonly format: DiskFormat;
  /** The size of the disk in it. */
  readonly size_bytes: number;
}

/** Refuses a qcow2 that names other files: it could name any file of this machine. @throws CommandError */
export async function describeImage(path: string, format: DiskFormat | null): Promise<DiskImage> {
  let head: Buffer;
  let file_bytes: number;
  try {
    // Opening a pipe would wait for its writer.
    await using file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
    const read = await file.read(Buffer.alloc(QCOW2_HEADER_BYTES), 0, QCOW2_HEADER_BYTES, 0);
    head = read.buffer.subarray(0, read.bytesRead);
    file_bytes = (await file.stat()).size;
  } catch (error) {
    const why =
      errnoOf(error) === 'ENOENT'
        ? `there is no file ${path}`
        : `${path} cannot be read: ${messageOf(error)}`;
    throw new CommandError(why, { exit_code: EXIT.not_found });
  }
  const header = parseQcow2Header(head);
  const found = format ?? (header ? 'qcow2' : 'raw');
  if (found === 'raw') {
    if (file_bytes === 0) throw new CommandError(`${path} is empty`);
    return { format: found, size_bytes: file_bytes };
  }
  if (!header) throw new CommandError(`${path} is not in qcow2 format; give --format raw`);
  if (header.has_backing_file || header.has_data_file) {
    throw new CommandError(
      `${path} needs another file (its backing or data file): convert it into a whole one first`,
    );
  }
  if (header.is_encrypted) throw new CommandError(`${path} is encrypted: convert it into a plain one first`);
  return { format: found, size_bytes: header.size_bytes };
}

export async function toQcow2(raw_path: string, path: string, signal: AbortSignal): Promise<void> {
  const words = ['-f', 'raw', '-O', 'qcow2', resolve(raw_path), resolve(path)];
  await convert(words, { user: null, jail: null, files: { reads: [], writes: [] }, signal });
}

/** The file may attack qemu-img, and may change after its header was checked, so qemu-img runs in a jail when we are root. */
export async function toRaw(path: string, raw_path: string, signal: AbortSignal): Promise<void> {
  const [from, to] = [resolve(path), resolve(raw_path)];
  const { jail } = process.getuid?.() === 0 ? await openJail(null) : { jail: null };
  const files = { reads: [from], writes: [to] };
  await convert(['-f', 'qcow2', '-O', 'raw', from, to], { user: 'operator', jail, files, signal });
}

/** Its output is synced. Paths must be absolute: qemu-img takes `x:` at the start of a relative path for a protocol. */
async function convert(
  words: readonly string[],
  options: Omit<Parameters<typeof qemuImg>[1], 'qemu_img_binary'>,
): Promise<void> {
  try {
    await qemuImg(['convert', '-t', 'writeback', ...words], { ...options, qemu_img_binary: 'qemu-img' });
  } catch (error) {
    const stderr = error instanceof Error && 'stderr' in error ? String(error.stderr).trim() : '';
    throw new CommandError(`qemu-img: ${stderr || messageOf(error)}`);
  }
}
