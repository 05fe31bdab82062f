/** Files that are disks, through qemu-img: what one is, and raw to qcow2 and back. */
import { execFile } from 'node:child_process';
import { open } from 'node:fs/promises';
import { resolve } from 'node:path';
import { promisify } from 'node:util';
import { messageOf } from '../lib/errors.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';

export const DISK_FORMATS = ['raw', 'qcow2'] as const;
export type DiskFormat = (typeof DISK_FORMATS)[number];

const run = promisify(execFile);
const ENVIRONMENT = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' };
const QCOW2_MAGIC = 'QFI\xfb';

export interface DiskImage {
  readonly format: DiskFormat;
  /** Of the disk that it is. */
  readonly size_bytes: number;
}

/**
 * A qcow2 that names other files is refused: whoever made it could have named any file of this machine.
 * @throws CommandError
 */
export async function describeImage(path: string, format: DiskFormat | null): Promise<DiskImage> {
  let found: DiskFormat;
  try {
    await using file = await open(path, 'r');
    const { buffer, bytesRead } = await file.read(Buffer.alloc(4), 0, 4, 0);
    const is_qcow2 = bytesRead === 4 && buffer.toString('latin1') === QCOW2_MAGIC;
    found = format ?? (is_qcow2 ? 'qcow2' : 'raw');
    const { size } = await file.stat();
    if (found === 'raw' && size === 0) throw new CommandError(`${path} is empty`);
    if (found === 'raw') return { format: found, size_bytes: size };
  } catch (error) {
    if (error instanceof CommandError) throw error;
    throw new CommandError(`${path} can't be read: ${messageOf(error)}`, { exit_code: EXIT.not_found });
  }
  const { stdout } = await qemuImg(['info', '--output=json', '-f', 'qcow2', pathOf(path)]);
  const info = JSON.parse(stdout) as {
    'virtual-size': number;
    'backing-filename'?: string;
    'format-specific'?: { data?: { 'data-file'?: string } };
  };
  if (info['backing-filename'] !== undefined || info['format-specific']?.data?.['data-file'] !== undefined) {
    throw new CommandError(
      `${path} needs another file (its backing or data file): convert it into a whole one first`,
    );
  }
  return { format: found, size_bytes: info['virtual-size'] };
}

export async function toQcow2(raw_path: string, path: string, signal: AbortSignal): Promise<void> {
  await convert(['-f', 'raw', '-O', 'qcow2', pathOf(raw_path), pathOf(path)], signal);
}

export async function toRaw(path: string, raw_path: string, signal: AbortSignal): Promise<void> {
  await convert(['-f', 'qcow2', '-O', 'raw', pathOf(path), pathOf(raw_path)], signal);
}

/** What it writes is on the disk when it ends. */
async function convert(args: readonly string[], signal: AbortSignal): Promise<void> {
  await qemuImg(['convert', '-t', 'writeback', ...args], signal);
}

/** Absolute: a colon in a relative path would make a protocol of its beginning. */
const pathOf = (path: string) => resolve(path);

async function qemuImg(args: readonly string[], signal?: AbortSignal): Promise<{ stdout: string }> {
  try {
    return await run('qemu-img', [...args], { env: ENVIRONMENT, ...(signal ? { signal } : {}) });
  } catch (error) {
    const stderr = error instanceof Error && 'stderr' in error ? String(error.stderr).trim() : '';
    throw new CommandError(`qemu-img: ${stderr || messageOf(error)}`);
  }
}
