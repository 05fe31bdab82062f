/**
 * `BlockMap` says where each block of a disk is stored: block number → {segment, offset, length, kind, mark, hash}. A
 * block that is not in the map equals the base image's. An entry of kind zero means zeroes, whatever the base image
 * holds.
 *
 * Memory is O(blocks ever set), about 44 bytes a block: parallel typed arrays with a row for each block, in order of
 * first appearance, and an open-addressed hash index (linear probing, at most two thirds full) from block number to
 * row. `BlockSet` is a set of block numbers, kept as a bitmap.
 */
import { assert, present } from '../shared/assert.ts';
import type { Encryption, FrameHome } from './frame-cipher.ts';
import {
  BLOCK_NUMBER_LIMIT,
  FRAME_KIND,
  type FrameKind,
  HASH_BYTES,
  type SegmentDirectory,
  type SegmentEntry,
} from './segment-format.ts';

/** What a reader needs to know about a segment. A fork's segments may belong to another disk. */
export interface SegmentSource extends FrameHome {
  readonly key: string;
  readonly size_bytes: number;
  readonly encryption: Encryption | null;
}

export interface BlockLocation {
  readonly block: number;
  readonly segment: SegmentSource;
  /** Key of the segment in the object store. */
  readonly key: string;
  readonly offset: number;
  readonly stored_bytes: number;
  readonly kind: FrameKind;
  /** The CRC or the nonce counter of the segment's entry. */
  readonly mark: number;
  readonly hash: Uint8Array;
}

/** How much of a segment this map refers to. */
export interface SegmentLive {
  readonly key: string;
  readonly segment: SegmentSource;
  readonly live_blocks: number;
  readonly live_bytes: number;
}

interface SegmentCount {
  readonly key: string;
  readonly segment: SegmentSource;
  live_blocks: number;
  live_bytes: number;
}

const KIND_SHIFT = 24;
const LENGTH_MASK = (1 << KIND_SHIFT) - 1;
/** In place of a kind: the block was removed. */
const ABSENT = 255;
/** Rows sorted between two steps; `inSlices` looks at the clock every 64 steps. */
const SORT_STEP = 256;

export class BlockMap {
  #rows = 0;
  #absent = 0;
  #index = new Uint32Array(64); // row + 1; 0 is free
  #blocks = new Uint32Array(32);
  #segments = new Uint32Array(32);
  #offsets = new Uint32Array(32);
  #lengths = new Uint32Array(32); // stored bytes, kind above KIND_SHIFT
  #marks = new Uint32Array(32);
  #hashes = new Uint8Array(32 * HASH_BYTES);
  readonly #segmentCounts: SegmentCount[] = [];
  readonly #segmentIndex = new Map<string, number>();

  /** How many blocks are present. */
  get count(): number {
    return this.#rows - this.#absent;
  }

  /** Applies the entries of a segment. They override existing ones. */
  applySegment({ key, size_bytes, identity, entries }: SegmentDirectory): void {
    const { disk_id, epoch, generation, encryption } = identity;
    const segment = this.addSegment({ key, size_bytes, disk_id, epoch, generation, encryption });
    for (const entry of entries) this.set(segment, entry);
  }

  /** Adds a segment. Returns its number in this map, for {@link set}. */
  addSegment(segment: SegmentSource): number {
    const known = this.#segmentIndex.get(segment.key);
    if (known !== undefined) return known;
    this.#segmentCounts.push({ key: segment.key, segment, live_blocks: 0, live_bytes: 0 });
    this.#segmentIndex.set(segment.key, this.#segmentCounts.length - 1);
    return this.#segmentCounts.length - 1;
  }

  /** Reserves space for `more` blocks, so that adding them does not grow the arrays again and again. */
  reserve(more: number): void {
    const rows = this.#rows + more;
    if (rows > this.#blocks.length) this.#growRows(rows);
    if (rows * 3 > this.#index.length * 2) this.#growIndex(rows);
  }

  /** Sets where a block is stored. */
  set(segment: number, entry: SegmentEntry): void {
    let row = this.#row(entry.block);
    if (row >= 0) this.#release(row);
    else row = this.#addRow(entry.block);
    this.#segments[row] = segment;
    this.#offsets[row] = entry.offset;
    this.#lengths[row] = entry.stored_bytes | (entry.kind << KIND_SHIFT);
    this.#marks[row] = entry.mark;
    this.#hashes.set(entry.hash, row * HASH_BYTES);
    const counts = this.#segmentOf(row);
    counts.live_blocks += 1;
    counts.live_bytes += entry.stored_bytes;
  }

  /** Makes the block equal the base image's. */
  remove(block: number): void {
    const row = this.#find(block);
    if (row < 0) return;
    this.#release(row);
    this.#lengths[row] = ABSENT << KIND_SHIFT;
    this.#absent += 1;
  }

  has(block: number): boolean {
    return this.#find(block) >= 0;
  }

  get(block: number): BlockLocation | undefined {
    const row = this.#find(block);
    return row < 0 ? undefined : this.#location(row);
  }

  /** A view of the block's hash, which the next `applySegment` may change. Undefined when the block is absent. */
  hashOf(block: number): Uint8Array | undefined {
    const row = this.#find(block);
    return row < 0 ? undefined : this.#hashes.subarray(row * HASH_BYTES, (row + 1) * HASH_BYTES);
  }

  isZero(block: number): boolean {
    const row = this.#find(block);
    return row >= 0 && this.#kind(row) === FRAME_KIND.zero;
  }

  /** All blocks by rising number. The map must not change meanwhile. */
  *inBlockOrder(): Generator<BlockLocation> {
    for (const location of this.stepsInBlockOrder()) if (location) yield location;
  }

  /** The same for `inSlices`: yields undefined now and then while it sorts. */
  *stepsInBlockOrder(): Generator<BlockLocation | undefined> {
    const rows = yield* this.#rowsByBlock();
    for (const row of rows) yield this.#kind(row) === ABSENT ? undefined : this.#location(row);
  }

  /**
   * All blocks by segment (in the order of application) and by offset in it: the best order to read them in.
   * The map must not change meanwhile.
   */
  *inSegmentOrder(): Generator<BlockLocation> {
    const offsets = this.#offsets;
    const { rows, starts } = this.#rowsBySegment();
    for (let segment = 0; segment < this.#segmentCounts.length; segment++) {
      const own = rows.subarray(starts[segment], starts[segment + 1]);
      own.sort((a, b) => (offsets[a] ?? 0) - (offsets[b] ?? 0));
      for (const row of own) if (this.#kind(row) !== ABSENT) yield this.#location(row);
    }
  }

  /** The segments that the map refers to, in the order of application. */
  *live(): Generator<SegmentLive> {
    for (const segment of this.#segmentCounts) if (segment.live_blocks > 0) yield { ...segment };
  }

  /**
   * A radix sort, 16 bits at a time. It yields now and then, because a million rows could block the event loop for a quarter
   * of a second.
   */
  *#rowsByBlock(): Generator<undefined, Uint32Array> {
    const [blocks, count] = [this.#blocks, this.#rows];
    let rows = new Uint32Array(count);
    for (let row = 0; row < count; row++) rows[row] = row;
    for (const shift of [0, 16]) {
      const next = new Uint32Array(65_537);
      for (let i = 0; i < count; i++) {
        const after = (((blocks[i] ?? 0) >>> shift) & 0xffff) + 1;
        next[after] = (next[after] ?? 0) + 1;
        if (i % SORT_STEP === 0) yield;
      }
      for (let i = 1; i < next.length; i++) next[i] = (next[i] ?? 0) + (next[i - 1] ?? 0);
      const sorted = new Uint32Array(count);
      for (let i = 0; i < count; i++) {
        const row = rows[i] ?? 0;
        const digit = ((blocks[row] ?? 0) >>> shift) & 0xffff;
        const at = next[digit] ?? 0;
        sorted[at] = row;
        next[digit] = at + 1;
        if (i % SORT_STEP === 0) yield;
      }
      rows = sorted;
    }
    return rows;
  }

  #rowsBySegment(): { rows: Uint32Array; starts: Uint32Array } {
    const starts = new Uint32Array(this.#segmentCounts.length + 1);
    for (let row = 0; row < this.#rows; row++) {
      const after = (this.#segments[row] ?? 0) + 1;
      starts[after] = (starts[after] ?? 0) + 1;
    }
    for (let i = 1; i < starts.length; i++) starts[i] = (starts[i] ?? 0) + (starts[i - 1] ?? 0);
    const next = starts.slice();
    const rows = new Uint32Array(this.#rows);
    for (let row = 0; row < this.#rows; row++) {
      const segment = this.#segments[row] ?? 0;
      const at = next[segment] ?? 0;
      rows[at] = row;
      next[segment] = at + 1;
    }
    return { rows, starts };
  }

  #location(row: number): BlockLocation {
    const packed = this.#lengths[row] ?? 0;
    const { segment } = this.#segmentOf(row);
    return {
      block: this.#blocks[row] ?? 0,
      segment,
      key: segment.key,
      offset: this.#offsets[row] ?? 0,
      stored_bytes: packed & LENGTH_MASK,
      kind: (packed >>> KIND_SHIFT) as FrameKind,
      mark: this.#marks[row] ?? 0,
      hash: this.#hashes.slice(row * HASH_BYTES, (row + 1) * HASH_BYTES),
    };
  }

  #segmentOf(row: number): SegmentCount {
    return present(this.#segmentCounts[this.#segments[row] ?? 0], 'the segment of a row');
  }

  #kind(row: number): number {
    return (this.#lengths[row] ?? 0) >>> KIND_SHIFT;
  }

  /** Uncounts a row that is about to change. */
  #release(row: number): void {
    if (this.#kind(row) === ABSENT) {
      this.#absent -= 1;
      return;
    }
    const before = this.#segmentOf(row);
    before.live_blocks -= 1;
    before.live_bytes -= (this.#lengths[row] ?? 0) & LENGTH_MASK;
  }

  #addRow(block: number): number {
    assert(block >= 0 && block < BLOCK_NUMBER_LIMIT, 'a block number is a u32');
    if (this.#rows === this.#blocks.length) this.#growRows();
    if ((this.#rows + 1) * 3 > this.#index.length * 2) this.#growIndex();
    const row = this.#rows++;
    this.#blocks[row] = block;
    this.#index[this.#slot(block)] = row + 1;
    return row;
  }

  /** The row of `block`, or -1. */
  #find(block: number): number {
    const row = this.#row(block);
    return row >= 0 && this.#kind(row) === ABSENT ? -1 : row;
  }

  #row(block: number): number {
    return (this.#index[this.#slot(block)] ?? 0) - 1;
  }

  /** The slot that holds `block`, or the free slot for it. */
  #slot(block: number): number {
    const mask = this.#index.length - 1;
    // Fibonacci hashing: the high bits, so that evenly spaced blocks spread as well as adjacent ones.
    let slot = Math.imul(block, 0x9e3779b1) >>> (Math.clz32(mask + 1) + 1);
    for (;;) {
      const row = this.#index[slot] ?? 0;
      if (row === 0 || this.#blocks[row - 1] === block) return slot;
      slot = (slot + 1) & mask;
    }
  }

  #growRows(length = Math.ceil(this.#blocks.length * 1.5)): void {
    const grown = (old: Uint32Array): Uint32Array<ArrayBuffer> => {
      const bigger = new Uint32Array(length);
      bigger.set(old);
      return bigger;
    };
    this.#blocks = grown(this.#blocks);
    this.#segments = grown(this.#segments);
    this.#offsets = grown(this.#offsets);
    this.#lengths = grown(this.#lengths);
    this.#marks = grown(this.#marks);
    const hashes = new Uint8Array(length * HASH_BYTES);
    hashes.set(this.#hashes);
    this.#hashes = hashes;
  }

  #growIndex(rows = this.#rows + 1): void {
    let length = this.#index.length;
    while (rows * 3 > length * 2) length *= 2;
    this.#index = new Uint32Array(length);
    for (let row = 0; row < this.#rows; row++) this.#index[this.#slot(this.#blocks[row] ?? 0)] = row + 1;
  }
}

const PAGE_BITS = 15;
const PAGE_MASK = (1 << PAGE_BITS) - 1;

/** A set of block numbers as a bitmap in pages of 32,768 blocks (2 GiB of disk, 4 KiB of memory), made on demand. */
export class BlockSet {
  readonly #pages = new Map<number, Uint32Array>();
  #count = 0;

  get count(): number {
    return this.#count;
  }

  has(block: number): boolean {
    const page = this.#pages.get(Math.floor(block / (PAGE_MASK + 1)));
    const word = page?.[(block & PAGE_MASK) >>> 5] ?? 0;
    return (word & (1 << (block & 31))) !== 0;
  }

  /** Adds `block`. Returns whether it was new. */
  add(block: number): boolean {
    const number = Math.floor(block / (PAGE_MASK + 1));
    let page = this.#pages.get(number);
    if (!page) {
      page = new Uint32Array((PAGE_MASK + 1) / 32);
      this.#pages.set(number, page);
    }
    const word = (block & PAGE_MASK) >>> 5;
    const bit = 1 << (block & 31);
    const before = page[word] ?? 0;
    if ((before & bit) !== 0) return false;
    page[word] = before | bit;
    this.#count += 1;
    return true;
  }
}
