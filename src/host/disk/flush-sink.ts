/**
 * Takes in the dirty blocks of one flush: an NBD export to which QEMU's backup job writes. Packs the blocks into
 * segments and uploads these.
 *
 *   write → spool (bounded; the ack waits for room) → batch of 1 MiB → worker: hash, skip, zstd → segment → PUT
 *
 * - An acknowledged write is in memory only. It is durable when `finish` resolves. After a failure, writes, flushes and
 *   `finish` reject with its cause.
 * - Of several writes to a block the last wins: batches are appended in the order in which they were filled.
 * - A block is skipped only if the head has the same content and no earlier write of this flush changed it.
 * - A block absent from the map equals the base image, so zeroes are recorded unless the head has zeroes there.
 * - Nothing is deleted that a generation may need.
 */
import { randomBytes } from 'node:crypto';
import { BlockBuffers } from '../../disk-format/block-buffers.ts';
import { type BlockMap, BlockSet } from '../../disk-format/block-map.ts';
import {
  type CompressPool,
  type PackedBatch,
  type PackTask,
  UNCHANGED,
} from '../../disk-format/compress-pool.ts';
import {
  type AttemptKey,
  type DataKey,
  type FrameHome,
  newAttemptKey,
  PURPOSE,
} from '../../disk-format/frame-cipher.ts';
import { ZERO_HASH } from '../../disk-format/frame-codec.ts';
import {
  BLOCK_BYTES,
  FRAME_KIND,
  type FrameKind,
  HASH_BYTES,
  type NewEntry,
  SEGMENT_MAX_BYTES,
} from '../../disk-format/segment-format.ts';
import { SegmentWriter, type WrittenSegment } from '../../disk-format/segment-writer.ts';
import type { ObjectStore } from '../../object-store/object-store.ts';
import { assert } from '../../shared/assert.ts';
import { BatchRooms, ByteBudget } from './byte-budget.ts';
import { NBD_EINVAL, NbdError, type NbdExport } from './nbd-protocol.ts';

export interface FlushSinkOptions {
  readonly store: ObjectStore;
  readonly pool: CompressPool;
  readonly disk_id: string;
  readonly epoch: number;
  /** The new generation. */
  readonly generation: number;
  /** Segments are named `<key_prefix>/seg/<epoch>/<generation>-<attempt>-<part>`. */
  readonly key_prefix: string;
  /** Size of the disk; a last partial block is padded with zeroes. A multiple of 512. */
  readonly size_bytes: number;
  /** The map of the previous generation; undefined for the first. It must not change meanwhile. */
  readonly head: BlockMap | undefined;
  /** Null: not encrypted. */
  readonly data_key: DataKey | null;
  /** Maximum bytes in memory between a write's acknowledgement and its upload. 24 MiB by default. */
  readonly spool_bytes?: number;
  /** Concurrent PUTs; 4 by default. */
  readonly upload_concurrency?: number;
  readonly signal?: AbortSignal;
}

export interface SinkResult {
  /** In the order of application. */
  readonly segments: readonly WrittenSegment[];
  /** Distinct blocks received, in bytes. */
  readonly dirty_bytes: number;
  /** Total size of the segments. */
  readonly uploaded_bytes: number;
  /** Received blocks that the head already had, in bytes. */
  readonly skipped_bytes: number;
  /** Number of entries in all segments. */
  readonly blocks: number;
}

interface Batch {
  /** In order. `slot` is the block's index in `data`, or -1 for a zero block. */
  readonly items: { readonly block: number; readonly slot: number; readonly known: Uint8Array | undefined }[];
  readonly members: Set<number>;
  data: Uint8Array<ArrayBuffer> | undefined;
  slots: number;
}

const BATCH_SLOTS = 16;
const BATCH_ITEMS = 4_096;
/** The charge of a zero block, whose entry is in memory until the upload. */
const ZERO_CHARGE_BYTES = 128;
const NO_BYTES = new Uint8Array(0);

export class FlushSink implements NbdExport {
  readonly size_bytes: number;
  readonly read_only = false;
  readonly min_block_bytes: number;
  readonly rooms: BatchRooms;
  readonly #pool: CompressPool;
  readonly #head: BlockMap | undefined;
  readonly #budget: ByteBudget;
  readonly #buffers: BlockBuffers;
  readonly #writer: SegmentWriter;
  readonly #key: AttemptKey | null;
  readonly #home: FrameHome;
  readonly #abort = new AbortController();
  readonly #touched = new BlockSet();
  readonly #signal: AbortSignal | undefined;
  readonly #onSignal = (): void => this.#fail(this.#signal?.reason);
  #batch: Batch = emptyBatch();
  #packing = 0;
  #packed: Promise<void> = Promise.resolve();
  #skipped = 0;
  #blocks = 0;
  #counter = 0;
  #finishing = false;
  #kept = false;
  #failure: { readonly cause: unknown } | undefined;

  constructor(options: FlushSinkOptions) {
    const { size_bytes, spool_bytes = 24 * 1024 * 1024 } = options;
    assert(size_bytes > 0 && size_bytes % 512 === 0, 'a disk has whole sectors');
    this.size_bytes = size_bytes;
    this.min_block_bytes = size_bytes % BLOCK_BYTES === 0 ? BLOCK_BYTES : 512;
    this.#pool = options.pool;
    this.#head = options.head;
    const budget = new ByteBudget(spool_bytes);
    this.#budget = budget;
    this.#buffers = new BlockBuffers(BATCH_SLOTS, () => spool_bytes - budget.used_bytes);
    this.rooms = new BatchRooms(this.#buffers, BATCH_SLOTS * BLOCK_BYTES);
    this.#key = options.data_key && newAttemptKey(options.data_key, PURPOSE.segment);
    const { disk_id, epoch, generation } = options;
    this.#home = { disk_id, epoch, generation };
    this.#writer = new SegmentWriter({
      store: options.store,
      key_prefix: options.key_prefix,
      identity: { ...this.#home, disk_bytes: size_bytes, attempt: randomBytes(4).readUInt32LE() },
      key: this.#key,
      segment_bytes: Math.min(SEGMENT_MAX_BYTES, Math.max(BLOCK_BYTES, Math.floor(spool_bytes / 4))),
      upload_concurrency: options.upload_concurrency ?? 4,
      signal: this.#abort.signal,
      onDropped: (bytes) => this.#buffers.give(bytes),
      onFreed: (bytes) => this.#give(bytes),
      onFailure: (cause) => this.#fail(cause),
    });
    this.#signal = options.signal;
    if (this.#signal?.aborted) this.#onSignal();
    else this.#signal?.addEventListener('abort', this.#onSignal, { once: true });
  }

  /** Bytes in the spool. */
  get spool_used_bytes(): number {
    return this.#budget.used_bytes;
  }

  /** The cause of a failure. QEMU reports only that its target failed. */
  get failure(): { readonly cause: unknown } | undefined {
    return this.#failure;
  }

  /** Distinct blocks received so far, in bytes. */
  get dirty_bytes(): number {
    return this.#touched.count * BLOCK_BYTES;
  }

  /** Accepts whole blocks (the disk's last may be partial). Resolves once they are in the spool. */
  async write(offset: number, data: Buffer): Promise<void> {
    this.#verifyRange(offset, data.length);
    if (this.rooms.has(data)) {
      await this.#room(data.length);
      this.#addBatch(offset / BLOCK_BYTES, this.rooms.keep(data));
      return;
    }
    for (let at = 0; at < data.length; at += BLOCK_BYTES) {
      await this.#room(BLOCK_BYTES);
      this.#addData((offset + at) / BLOCK_BYTES, data.subarray(at, at + BLOCK_BYTES));
    }
  }

  async writeZeroes(offset: number, length: number): Promise<void> {
    this.#verifyRange(offset, length);
    for (let at = 0; at < length; at += BLOCK_BYTES) {
      await this.#room(ZERO_CHARGE_BYTES);
      this.#addZero((offset + at) / BLOCK_BYTES);
    }
  }

  /** An NBD flush does nothing: only `finish` makes writes durable. */
  async flush(): Promise<void> {
    this.#throwIfFailed();
  }

  /**
   * Uploads the rest. Resolves once every segment is durable; rejects with the first failure.
   * Call it once, without writes in flight. After a rejection call {@link abort}.
   */
  async finish(): Promise<SinkResult> {
    this.#throwIfFailed();
    assert(!this.#finishing, 'a flush finishes once');
    this.#finishing = true;
    this.#cutBatch();
    await this.#packed;
    this.#throwIfFailed();
    const segments = await this.#writer.finish();
    this.#throwIfFailed();
    this.#buffers.close();
    this.#signal?.removeEventListener('abort', this.#onSignal);
    return {
      segments,
      dirty_bytes: this.#touched.count * BLOCK_BYTES,
      uploaded_bytes: segments.reduce((sum, { size_bytes }) => sum + size_bytes, 0),
      skipped_bytes: this.#skipped * BLOCK_BYTES,
      blocks: this.#blocks,
    };
  }

  /** Call it before requesting the commit: from then on a generation may need the segments, even if the request fails. */
  keep(): void {
    this.#kept = true;
  }

  /** Stops, and deletes the uploaded segments, best effort. After {@link keep} it leaves them to the sweep. */
  async abort(reason: unknown = new Error('the flush was aborted')): Promise<void> {
    this.#fail(reason);
    await this.#packed;
    await this.#writer.settled();
    if (!this.#kept) await this.#writer.discard();
  }

  #verifyRange(offset: number, length: number): void {
    this.#throwIfFailed();
    if (this.#finishing) throw new Error('the flush is finished');
    const end = offset + length;
    const aligned = offset % BLOCK_BYTES === 0 && (end % BLOCK_BYTES === 0 || end === this.size_bytes);
    if (!aligned || end > this.size_bytes) {
      throw new NbdError(NBD_EINVAL, `${length} bytes at ${offset} are not whole blocks of the disk`);
    }
  }

  async #room(bytes: number): Promise<void> {
    if (this.#budget.tryTake(bytes)) return;
    this.#throwIfFailed();
    const taken = this.#budget.take(bytes);
    this.#relieve();
    await taken;
    this.#throwIfFailed();
  }

  #give(bytes: number): void {
    this.#budget.give(bytes);
    this.#relieve();
  }

  /** If a writer waits for space that no upload in flight will free, uploads the open segment early. */
  #relieve(): void {
    if (!this.#budget.waiting || this.#packing > 0 || this.#failure) return;
    if (this.#batch.items.length > 0) this.#cutBatch();
    else if (!this.#writer.uploading) this.#writer.cut();
  }

  /** Adds a new batch with the blocks from `first` on. */
  #addBatch(first: number, data: Uint8Array<ArrayBuffer>): void {
    this.#cutBatch();
    this.#batch.data = data;
    for (let i = 0; i < BATCH_SLOTS; i++) this.#addItem(this.#batch, first + i, this.#batch.slots++);
  }

  #addData(block: number, bytes: Uint8Array): void {
    const batch = this.#batchFor(block);
    batch.data ??= this.#buffers.take();
    const at = batch.slots * BLOCK_BYTES;
    batch.data.set(bytes, at);
    // The disk's last block may be partial.
    batch.data.fill(0, at + bytes.length, at + BLOCK_BYTES);
    this.#addItem(batch, block, batch.slots++);
  }

  #addZero(block: number): void {
    this.#addItem(this.#batchFor(block), block, -1);
  }

  #batchFor(block: number): Batch {
    if (this.#batch.members.has(block)) this.#cutBatch();
    return this.#batch;
  }

  #addItem(batch: Batch, block: number, slot: number): void {
    const first = this.#touched.add(block);
    batch.items.push({ block, slot, known: first ? this.#head?.hashOf(block) : undefined });
    batch.members.add(block);
    if (batch.slots === BATCH_SLOTS || batch.items.length === BATCH_ITEMS) this.#cutBatch();
  }

  #cutBatch(): void {
    const batch = this.#batch;
    if (batch.items.length === 0) return;
    this.#batch = emptyBatch();
    this.#packing += 1;
    const packing = this.#pack(batch);
    packing.catch(() => {}); // awaited later; it may fail before that
    this.#packed = this.#packed.then(async () => {
      try {
        const packed = await packing;
        if (!this.#failure) this.#appendBatch(batch, packed);
      } catch (error) {
        this.#fail(error);
      } finally {
        this.#packing -= 1;
        this.#relieve();
      }
    });
  }

  async #pack(batch: Batch): Promise<PackedBatch | undefined> {
    const { data, slots } = batch;
    if (!data) return undefined;
    const known = new Uint8Array(slots * HASH_BYTES);
    const known_present = new Uint8Array(slots);
    for (const item of batch.items) {
      if (item.slot < 0 || !item.known) continue;
      known.set(item.known, item.slot * HASH_BYTES);
      known_present[item.slot] = 1;
    }
    const blocks = data.subarray(0, slots * BLOCK_BYTES);
    return this.#pool.pack({ blocks, known, known_present, sealing: this.#sealing(batch) });
  }

  /** Each slot of each batch has its own nonce, so a block that is written twice has two. */
  #sealing({ items, slots }: Batch): PackTask['sealing'] {
    if (!this.#key) return undefined;
    const numbers = new Uint32Array(slots);
    for (const { block, slot } of items) if (slot >= 0) numbers[slot] = block;
    const first_counter = this.#counter;
    this.#counter += slots;
    assert(this.#counter < 2 ** 32, 'a flush has a nonce for each block that it receives');
    return { key: this.#key.key, home: this.#home, numbers, first_counter };
  }

  #appendBatch(batch: Batch, packed: PackedBatch | undefined): void {
    if (packed?.spare) this.#buffers.give(packed.spare);
    let at = 0;
    let freed_bytes = 0;
    for (const { block, slot, known } of batch.items) {
      if (slot < 0) {
        if (known && Buffer.compare(known, ZERO_HASH) === 0) {
          this.#skipped += 1;
          freed_bytes += ZERO_CHARGE_BYTES;
        } else {
          this.#append(
            { block, kind: FRAME_KIND.zero, mark: 0, hash: ZERO_HASH },
            NO_BYTES,
            ZERO_CHARGE_BYTES,
          );
        }
        continue;
      }
      assert(packed, 'a batch with data was packed');
      const kind = packed.kinds[slot];
      const stored = packed.frames.subarray(at, at + (packed.stored_bytes[slot] ?? 0));
      at += stored.length;
      // A tag may make it larger than the block.
      const charge_bytes = Math.min(stored.length, BLOCK_BYTES);
      freed_bytes += BLOCK_BYTES - charge_bytes;
      if (kind === UNCHANGED) {
        this.#skipped += 1;
      } else {
        const hash = packed.hashes.subarray(slot * HASH_BYTES, (slot + 1) * HASH_BYTES);
        const mark = packed.marks[slot] ?? 0;
        this.#append({ block, kind: kind as FrameKind, mark, hash }, stored, charge_bytes);
      }
    }
    this.#budget.give(freed_bytes);
  }

  #append(entry: Omit<NewEntry, 'stored_bytes'>, stored: Uint8Array, charge_bytes: number): void {
    this.#blocks += 1;
    this.#writer.append({ ...entry, stored_bytes: stored.length }, stored, charge_bytes);
  }

  #fail(cause: unknown): void {
    if (this.#failure) return;
    this.#failure = { cause };
    this.#signal?.removeEventListener('abort', this.#onSignal);
    this.#batch = emptyBatch();
    this.#buffers.close();
    this.#budget.fail(cause);
    this.#abort.abort(cause);
  }

  #throwIfFailed(): void {
    if (this.#failure) throw this.#failure.cause;
  }
}

function emptyBatch(): Batch {
  return { items: [], members: new Set(), data: undefined, slots: 0 };
}
