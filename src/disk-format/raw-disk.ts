/**
 * Converts between a generation of a disk and a raw disk file. `writeRawDisk` writes a sparse file: the base image with
 * the generation's blocks over it. `packDisk` writes segments that make a disk equal to a file: it packs each block of
 * the file that differs from the head (by its hash), or from the base image if the head lacks the block.
 *
 * Memory: the disk's map and a few runs of frames, whatever the disk's size.
 */
import { randomBytes } from 'node:crypto';
import type { FileHandle } from 'node:fs/promises';
import type { ObjectStore } from '../object-store/object-store.ts';
import { assert, present } from '../shared/assert.ts';
import { inParallel } from '../shared/concurrency.ts';
import { release } from '../shared/release.ts';
import { newBlocks } from './block-buffers.ts';
import type { BlockMap } from './block-map.ts';
import { type CompressPool, UNCHANGED } from './compress-pool.ts';
import { type DataKey, type FrameHome, type KeyRing, newAttemptKey, PURPOSE } from './frame-cipher.ts';
import { coalesce, readRun } from './read-run.ts';
import { BLOCK_BYTES, type FrameKind, HASH_BYTES, SEGMENT_MAX_BYTES } from './segment-format.ts';
import { SegmentWriter, type WrittenSegment } from './segment-writer.ts';

/** Blocks per read of the base image and of files. */
const CHUNK_BLOCKS = 16;
const ZERO_BLOCK = Buffer.alloc(BLOCK_BYTES);

/** A file read as a disk: zero after its end. */
export interface DiskFile {
  readonly file: FileHandle;
  readonly size_bytes: number;
}

/** `count` blocks from `first` on, with zeroes after the end of the file. */
async function readBlocks({ file, size_bytes }: DiskFile, first: number, count: number): Promise<Buffer> {
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

/** Bytes of frames that wait for their upload. */
const WAITING_MAX_BYTES = 32 * 1024 * 1024;
const ENTRY_CHARGE_BYTES = 128;

export interface PackDiskOptions {
  readonly store: ObjectStore;
  readonly pool: CompressPool;
  /** The disk's present map. */
  readonly head: BlockMap;
  readonly base: DiskFile;
  readonly source: DiskFile;
  /** The disk's size, at least the source's. */
  readonly size_bytes: number;
  /** Where the new segments belong. */
  readonly home: FrameHome;
  readonly key_prefix: string;
  /** Null: not encrypted. */
  readonly data_key: DataKey | null;
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: (done_bytes: number, total_bytes: number) => void;
}

export interface PackedDisk {
  readonly segments: readonly WrittenSegment[];
  /** Blocks that differ from the disk's present content. */
  readonly changed_blocks: number;
}

interface Change {
  readonly block: number;
  readonly bytes: Buffer;
  /** The hash of the block's present content. */
  readonly known: Uint8Array | undefined;
}

/** Everything is durable when it resolves. After a failure, the new objects are deleted (best effort). */
export async function packDisk(options: PackDiskOptions): Promise<PackedDisk> {
  const { source, size_bytes, onProgress, signal } = options;
  assert(source.size_bytes <= size_bytes, 'the disk is as large as the file');
  const packer = new Packer(options);
  try {
    const blocks = lastBlock(options) + 1;
    for (let first = 0; first < blocks; first += CHUNK_BLOCKS) {
      signal?.throwIfAborted();
      const count = Math.min(CHUNK_BLOCKS, blocks - first);
      await packer.append(await changesIn(options, first, count));
      onProgress?.((first + count) * BLOCK_BYTES, blocks * BLOCK_BYTES);
    }
    return await packer.finish();
  } catch (error) {
    await packer.discard();
    throw error;
  }
}

/** File, image and disk are all zero after it. */
function lastBlock({ head, base, source, size_bytes }: PackDiskOptions): number {
  let last = Math.ceil(Math.max(source.size_bytes, Math.min(base.size_bytes, size_bytes)) / BLOCK_BYTES) - 1;
  for (const { block } of head.inBlockOrder()) last = Math.max(last, block);
  return last;
}

async function changesIn(
  { head, base, source }: PackDiskOptions,
  first: number,
  count: number,
): Promise<Change[]> {
  const [now, image] = [await readBlocks(source, first, count), await readBlocks(base, first, count)];
  const changes: Change[] = [];
  for (let i = 0; i < count; i++) {
    const [from, to] = [i * BLOCK_BYTES, (i + 1) * BLOCK_BYTES];
    const bytes = now.subarray(from, to);
    const known = head.hashOf(first + i);
    if (known || !bytes.equals(image.subarray(from, to))) changes.push({ block: first + i, bytes, known });
  }
  return changes;
}

class Packer {
  readonly #options: PackDiskOptions;
  readonly #key: ReturnType<typeof newAttemptKey> | null;
  readonly #writer: SegmentWriter;
  readonly #abort = new AbortController();
  #counter = 0;
  #waiting = 0;
  #changed = 0;
  #failure: { readonly cause: unknown } | undefined;

  constructor(options: PackDiskOptions) {
    const { store, home, key_prefix, size_bytes, data_key } = options;
    this.#options = options;
    this.#key = data_key && newAttemptKey(data_key, PURPOSE.segment);
    this.#writer = new SegmentWriter({
      store,
      key_prefix,
      identity: { ...home, disk_bytes: size_bytes, attempt: randomBytes(4).readUInt32LE() },
      key: this.#key,
      segment_bytes: SEGMENT_MAX_BYTES,
      upload_concurrency: 2,
      signal: this.#abort.signal,
      onFreed: (bytes) => {
        this.#waiting -= bytes;
      },
      onFailure: (cause) => {
        this.#failure = { cause };
      },
    });
  }

  async append(changes: readonly Change[]): Promise<void> {
    if (this.#waiting > WAITING_MAX_BYTES) await this.#writer.settled();
    this.#throwIfFailed();
    if (changes.length === 0) return;
    const known = new Uint8Array(changes.length * HASH_BYTES);
    for (const [i, change] of changes.entries()) if (change.known) known.set(change.known, i * HASH_BYTES);
    const numbers = Uint32Array.from(changes, ({ block }) => block);
    const blocks = newBlocks(changes.length);
    for (const [i, { bytes }] of changes.entries()) blocks.set(bytes, i * BLOCK_BYTES);
    const { kinds, stored_bytes, marks, hashes, frames, spare } = await this.#options.pool.pack({
      blocks,
      known,
      known_present: Uint8Array.from(changes, (change) => (change.known ? 1 : 0)),
      sealing: this.#key
        ? { key: this.#key.key, home: this.#options.home, numbers, first_counter: this.#counter }
        : undefined,
    });
    this.#counter += changes.length;
    if (spare) release(spare);
    assert(this.#counter < 2 ** 32, 'there is a nonce for each block');
    let at = 0;
    for (const [i, block] of numbers.entries()) {
      const length = present(stored_bytes[i], 'a length');
      const stored = frames.subarray(at, at + length);
      at += length;
      const kind = present(kinds[i], 'a kind');
      if (kind === UNCHANGED) continue;
      const hash = hashes.slice(i * HASH_BYTES, (i + 1) * HASH_BYTES);
      const mark = present(marks[i], 'a mark');
      const charge = length + ENTRY_CHARGE_BYTES;
      this.#changed += 1;
      this.#waiting += charge;
      this.#writer.append(
        { block, kind: kind as FrameKind, stored_bytes: length, mark, hash },
        stored,
        charge,
      );
    }
  }

  async finish(): Promise<PackedDisk> {
    const segments = await this.#writer.finish();
    this.#throwIfFailed();
    return { segments, changed_blocks: this.#changed };
  }

  /** Deletes the new objects, best effort. */
  async discard(): Promise<void> {
    this.#abort.abort(new Error('given up'));
    await this.#writer.settled();
    await this.#writer.discard();
  }

  #throwIfFailed(): void {
    if (this.#failure) throw this.#failure.cause;
  }
}
