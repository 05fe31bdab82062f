/**
 * The receiving end of one flush: an NBD export into which QEMU's backup job writes the dirty blocks, and from which
 * segments go to the object store.
 *
 *   write → spool (bounded; the ack waits for room) → batch of 1 MiB → worker: hash, skip, zstd → segment → PUT
 *
 * Invariants:
 * - An acknowledged write is in memory only; it is durable when `finish` resolves, not before.
 * - Of several writes to a block the last one wins: batches are appended in the order they were filled.
 * - A block is left out only if the head already says the same, and no earlier write of this flush said otherwise.
 * - Absent from the map means "as in the base image", so zeroes are recorded unless the head says zero.
 * - After a failure nothing succeeds any more: writes, flushes and `finish` reject with its cause.
 * - Nothing is deleted that a generation may need.
 */
import { randomBytes } from 'node:crypto';
import { BlockBuffers } from '../../disk-format/block-buffers.ts';
import type { BlockMap } from '../../disk-format/block-map.ts';
import { BlockSet } from '../../disk-format/block-set.ts';
import {
  type CompressPool,
  type PackedBatch,
  type PackTask,
  UNCHANGED,
} from '../../disk-format/compress-pool.ts';
import type { FrameHome } from '../../disk-format/frame-cipher.ts';
import { ZERO_HASH } from '../../disk-format/frame-codec.ts';
import { type AttemptKey, type DataKey, newAttemptKey, PURPOSE } from '../../disk-format/key-ring.ts';
import {
  BLOCK_BYTES,
  FRAME_KIND,
  type FrameKind,
  HASH_BYTES,
  type NewEntry,
  SEGMENT_MAX_BYTES,
} from '../../disk-format/segment-format.ts';
import { SegmentWriter, type WrittenSegment } from '../../disk-format/segment-writer.ts';
import { assert } from '../../lib/assert.ts';
import type { ObjectStore } from '../../object-store/object-store.ts';
import { BatchRooms } from './batch-rooms.ts';
import { ByteBudget } from './byte-budget.ts';
import { NbdError, type NbdExport } from './nbd-export.ts';
import { NBD_EINVAL } from './nbd-protocol.ts';

export interface FlushSinkOptions {
  readonly store: ObjectStore;
  readonly pool: CompressPool;
  readonly disk_id: string;
  readonly epoch: number;
  /** The generation being made. */
  readonly generation: number;
  /** Segments are named `<key_prefix>/seg/<epoch>/<generation>-<attempt>-<part>`. */
  readonly key_prefix: string;
  /** Size of the disk; a last partial block is padded with zeroes. A multiple of 512. */
  readonly size_bytes: number;
  /** The map of the generation before; none for the first. Must not change meanwhile. */
  readonly head: BlockMap | undefined;
  /** What to encrypt with; null: not at all. */
  readonly data_key: DataKey | null;
  /** The most bytes held in memory between an acknowledged write and its upload. 24 MiB by default. */
  readonly spool_bytes?: number;
  /** PUTs at once; 4 by default. */
  readonly upload_concurrency?: number;
  readonly signal?: AbortSignal;
}

export interface FlushResult {
  /** In the order in which they apply. */
  readonly segments: readonly WrittenSegment[];
  /** Distinct blocks received, times 64 KiB. */
  readonly dirty_bytes: number;
  /** Sizes of all segments. */
  readonly uploaded_bytes: number;
  /** Blocks received that the head already had, times 64 KiB. */
  readonly skipped_bytes: number;
  /** Entries in all segments. */
  readonly blocks: number;
}

interface Batch {
  /** In order; `slot` is the block's place in `data`, or -1 for a zero block. */
  readonly items: { readonly block: number; readonly slot: number; readonly known: Uint8Array | undefined }[];
  readonly members: Set<number>;
  data: Uint8Array<ArrayBuffer> | undefined;
  slots: number;
}

const BATCH_SLOTS = 16;
const BATCH_ITEMS = 4_096;
/** What a zero block is charged: it is an entry in memory until uploaded. */
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

  /** Bytes in the spool now. */
  get spool_used_bytes(): number {
    return this.#budget.used_bytes;
  }

  /** What made it fail, if it has: QEMU only says that its target failed. */
  get failure(): { readonly cause: unknown } | undefined {
    return this.#failure;
  }

  /** Distinct blocks received so far, times 64 KiB. */
  get dirty_bytes(): number {
    return this.#touched.count * BLOCK_BYTES;
  }

  /** Takes whole blocks (the disk's last may be partial); resolves once they are in the spool. */
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

  /** An NBD flush promises nothing here: durability is what `finish` gives. */
  async flush(): Promise<void> {
    this.#throwIfFailed();
  }

  /**
   * Uploads what is left. Resolves once every segment is durable in the store; rejects with the first failure.
   * Call once, when no write is under way; after a rejection call {@link abort}.
   */
  async finish(): Promise<FlushResult> {
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

  /** To be called before the commit is asked for: from here on a generation may need what was uploaded, whatever comes. */
  keep(): void {
    this.#kept = true;
  }

  /** Stops, and deletes what was uploaded, best effort, unless it is to be kept: then the sweep finds it if nobody needs it. */
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

  /** Somebody waits for room and nothing under way will make any: send what is held back for fuller segments. */
  #relieve(): void {
    if (!this.#budget.waiting || this.#packing > 0 || this.#failure) return;
    if (this.#batch.items.length > 0) this.#cutBatch();
    else if (!this.#writer.uploading) this.#writer.cut();
  }

  /** A batch of its own, of the blocks from this one on. */
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
    // The disk's last block may be partial: it is padded.
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
    packing.catch(() => {}); // awaited in its turn; a failure may come before
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

  /** Each slot of each batch has a nonce of its own: a block that comes twice in a flush too. */
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
      // A tag may make it larger than the block was.
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
