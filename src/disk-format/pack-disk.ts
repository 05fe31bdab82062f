/**
 * Writes segments that make a disk equal to a file. It packs each block that differs: from the head's hash if the head has
 * the block, else from the base image.
 */
import { randomBytes } from 'node:crypto';
import type { ObjectStore } from '../object-store/object-store.ts';
import { assert, present } from '../shared/assert.ts';
import { release } from '../shared/release.ts';
import { newBlocks } from './block-buffers.ts';
import type { BlockMap } from './block-map.ts';
import { type CompressPool, UNCHANGED } from './compress-pool.ts';
import type { FrameHome } from './frame-cipher.ts';
import { type DataKey, newAttemptKey, PURPOSE } from './key-ring.ts';
import { CHUNK_BLOCKS, type DiskFile, readBlocks } from './raw-disk.ts';
import { BLOCK_BYTES, type FrameKind, HASH_BYTES, SEGMENT_MAX_BYTES } from './segment-format.ts';
import { SegmentWriter, type WrittenSegment } from './segment-writer.ts';

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
