/** Recognises the compression of an archive (none, gzip, zstd, xz), and decompresses the archive as a stream. */
import { spawn } from 'node:child_process';
import { type FileHandle, open } from 'node:fs/promises';
import type { Readable, Transform } from 'node:stream';
import { createGunzip, createZstdDecompress } from 'node:zlib';
import { UnusableImageError } from './read-tar.ts';

const HEAD_BYTES = 1_100;
const XZ_MEMORY = '256MiB';

export type Compression = 'none' | 'gzip' | 'zstd' | 'xz';

/** The first bytes of a file, which show its type. */
export async function headOf(path: string): Promise<Buffer> {
  await using file = await open(path, 'r');
  return headOfFile(file);
}

async function headOfFile(file: FileHandle): Promise<Buffer> {
  const { buffer, bytesRead } = await file.read(Buffer.alloc(HEAD_BYTES), 0, HEAD_BYTES, 0);
  return buffer.subarray(0, bytesRead);
}

const MAGIC: readonly (readonly [Compression, string])[] = [
  ['gzip', '1f8b'],
  ['zstd', '28b52ffd'],
  ['xz', 'fd377a585a00'],
];

export function compressionOf(head: Buffer): Compression {
  return MAGIC.find(([, magic]) => head.toString('hex', 0, magic.length / 2) === magic)?.[0] ?? 'none';
}

/**
 * Decompresses a file, which stays open.
 * @param watch is called with each compressed chunk
 * @throws UnusableImageError when it cannot be decompressed
 */
export async function* unpacked(source: FileHandle, watch?: (chunk: Buffer) => void): AsyncGenerator<Buffer> {
  const compression = compressionOf(await headOfFile(source));
  const file = source.createReadStream({ start: 0, autoClose: false, highWaterMark: 256 * 1024 });
  if (watch) file.on('data', (chunk) => watch(chunk as Buffer));
  const unpacker = compression === 'xz' ? null : transformOf(compression);
  try {
    if (compression === 'xz') yield* throughXz(file);
    else if (unpacker) {
      file.once('error', (error) => unpacker.destroy(error));
      yield* file.pipe(unpacker) as AsyncIterable<Buffer>;
    } else yield* file as AsyncIterable<Buffer>;
  } catch (cause) {
    if (cause instanceof UnusableImageError || !isUnpacking(cause)) throw cause;
    throw new UnusableImageError(`its ${compression} compression is damaged`, { cause });
  } finally {
    file.destroy();
    unpacker?.destroy();
  }
}

function transformOf(compression: 'none' | 'gzip' | 'zstd'): Transform | null {
  if (compression === 'gzip') return createGunzip();
  return compression === 'zstd' ? createZstdDecompress() : null;
}

function isUnpacking(error: unknown): boolean {
  const code = error instanceof Error && 'code' in error ? String(error.code) : '';
  return /^(Z_|ZSTD_|ERR_)/.test(code);
}

/** Node.js does not support xz. Debian's program does, with limited memory. */
async function* throughXz(file: Readable): AsyncGenerator<Buffer> {
  const xz = spawn('xz', ['--decompress', '--stdout', `--memlimit-decompress=${XZ_MEMORY}`], {
    stdio: ['pipe', 'pipe', 'ignore'],
    env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' },
  });
  const ended = new Promise<number | null>((resolve, reject) => {
    xz.once('error', reject);
    xz.once('close', resolve);
  });
  ended.catch(() => undefined);
  // Its exit code reports the error.
  xz.stdin.on('error', () => undefined);
  file.pipe(xz.stdin);
  try {
    yield* xz.stdout as AsyncIterable<Buffer>;
    if ((await ended) !== 0)
      throw new UnusableImageError('its xz compression is damaged, or takes too much memory');
  } finally {
    xz.kill('SIGKILL');
  }
}
