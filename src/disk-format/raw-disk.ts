/**
 * Writes a generation of a disk as a sparse raw file: the base image with the generation's blocks over it. Memory: the
 * disk's map and a few runs of frames, whatever the disk's size.
 */
import type { FileHandle } from 'node:fs/promises';
import type { ObjectStore } from '../object-store/object-store.ts';
import { assert } from '../shared/assert.ts';
import { inParallel } from '../shared/concurrency.ts';
import type { BlockMap } from './block-map.ts';
import type { CompressPool } from './compress-pool.ts';
import type { KeyRing } from './key-ring.ts';
import { coalesce, readRun } from './read-run.ts';
import { BLOCK_BYTES } from './segment-format.ts';

/** Blocks per read of the base image and of files. */
export const CHUNK_BLOCKS = 16;
const ZERO_BLOCK = Buffer.alloc(BLOCK_BYTES);

/** A file read as a disk: zero after its end. */
export interface DiskFile {
  readonly file: FileHandle;
  readonly size_bytes: number;
}

/** `count` blocks from `first` on, with zeroes after the end of the file. */
export async function readBlocks(
  { file, size_bytes }: DiskFile,
  first: number,
  count: number,
): Promise<Buffer> {
  const bytes = Buffer.allocUnsafeSlow(count * BLOCK_BYTES);
  const offset = first * BLOCK_BYTES;
  const length = Math.min(bytes.length, Math.max(0, size_bytes - offset));
  bytes.fill(0, length);
  for (let done = 0; done < length; ) {
    const { bytesRead } = await file.read(bytes, done, length - done, offset + done);
    assert(bytesRead > 0, 'a file is as long as it was when it was opened');
    done += bytesRead;
  }
  return bytes;
}

export interface WriteRawDiskOptions {
  readonly store: ObjectStore;
  readonly map: BlockMap;
  readonly keys: KeyRing;
  readonly pool: CompressPool;
  readonly size_bytes: number;
  readonly base: DiskFile;
  /** New and empty. */
  readonly target: FileHandle;
  readonly concurrency?: number;
  readonly signal?: AbortSignal | undefined;
  /** Bytes of the disk that are written or need no writing. */
  readonly onProgress?: (done_bytes: number) => void;
}

/**
 * Writes the disk, durable when it resolves. Every block of the generation is verified before it is written.
 * @throws SegmentCorruptError naming segment and block
 */
export async function writeRawDisk(options: WriteRawDiskOptions): Promise<void> {
  const { target, size_bytes, onProgress = () => undefined } = options;
  await target.truncate(size_bytes);
  let done = 0;
  const advance = (bytes: number) => {
    done += bytes;
    onProgress(done);
  };
  await writeBase(options, advance);
  await writeGeneration(options, advance);
  await target.sync();
}

async function writeBase(
  { map, base, target, size_bytes, signal }: WriteRawDiskOptions,
  advance: (bytes: number) => void,
): Promise<void> {
  const blocks = Math.ceil(Math.min(base.size_bytes, size_bytes) / BLOCK_BYTES);
  for (let first = 0; first < blocks; first += CHUNK_BLOCKS) {
    signal?.throwIfAborted();
    const count = Math.min(CHUNK_BLOCKS, blocks - first);
    const chunk = await readBlocks(base, first, count);
    for (let i = 0; i < count; i++) {
      const block = chunk.subarray(i * BLOCK_BYTES, (i + 1) * BLOCK_BYTES);
      if (!map.has(first + i) && !block.equals(ZERO_BLOCK)) {
        await writeClipped(target, block, first + i, size_bytes);
      }
    }
    advance(count * BLOCK_BYTES);
  }
}

async function writeGeneration(
  { store, map, keys, pool, target, size_bytes, concurrency = 4, signal }: WriteRawDiskOptions,
  advance: (bytes: number) => void,
): Promise<void> {
  await inParallel(coalesce(map.inSegmentOrder()), concurrency, async (run) => {
    signal?.throwIfAborted();
    const blocks = await readRun(run, { store, keys, pool, signal });
    for (const [i, { block }] of run.frames.entries()) {
      const bytes = blocks.subarray(i * BLOCK_BYTES, (i + 1) * BLOCK_BYTES);
      await writeClipped(target, bytes, block, size_bytes);
    }
    advance(run.frames.length * BLOCK_BYTES);
  });
}

/** The disk's last block may be partial. */
async function writeClipped(
  target: FileHandle,
  bytes: Buffer,
  block: number,
  size_bytes: number,
): Promise<void> {
  const offset = block * BLOCK_BYTES;
  const length = Math.min(bytes.length, size_bytes - offset);
  for (let done = 0; done < length; ) {
    const { bytesWritten } = await target.write(bytes, done, length - done, offset + done);
    done += bytesWritten;
  }
}
