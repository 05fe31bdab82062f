/**
 * Rewrites segments for compaction. `SegmentRewriter` copies the live frames of some segments (those that a map refers
 * to) into new segments: it reads and verifies each block, and packs it with the disk's present key. The old segments
 * stay unchanged. `LiveBlocks` collects which blocks of which segments several maps refer to.
 */
import { randomBytes } from 'node:crypto';
import type { ObjectStore } from '../object-store/object-store.ts';
import { assert, present } from '../shared/assert.ts';
import { inSlices } from '../shared/concurrency.ts';
import { release } from '../shared/release.ts';
import { newBlocks } from './block-buffers.ts';
import { type BlockLocation, BlockMap, BlockSet, type SegmentSource } from './block-map.ts';
import type { CompressPool, PackedBatch } from './compress-pool.ts';
import { type DataKey, type FrameHome, KeyRing, newAttemptKey, PURPOSE } from './frame-cipher.ts';
import { ZERO_HASH } from './frame-codec.ts';
import { diffSteps, readDirectory, type SegmentRef } from './load-map.ts';
import type { MapChange } from './map-objects.ts';
import { coalesce, readRun } from './read-run.ts';
import {
  ENTRY_BYTES,
  FRAME_KIND,
  type FrameKind,
  HASH_BYTES,
  SEGMENT_MAX_BYTES,
  SegmentCorruptError,
  TRAILER_BYTES,
} from './segment-format.ts';
import { SegmentWriter, type WrittenSegment } from './segment-writer.ts';

/** Bytes of frames that wait for their upload. */
const WAITING_MAX_BYTES = 32 * 1024 * 1024;
const ENTRY_CHARGE_BYTES = 128;

export interface RewriteOptions {
  readonly store: ObjectStore;
  readonly pool: CompressPool;
  readonly keys: KeyRing;
  /** Where the new segments belong. The generation is durable. */
  readonly home: FrameHome;
  readonly key_prefix: string;
  readonly disk_bytes: number;
  /** Null: not encrypted. */
  readonly data_key: DataKey | null;
  readonly signal?: AbortSignal | undefined;
}

/** The new places of frames, by their old segment. */
export class Relocations {
  readonly #to = new Map<string, Map<number, BlockLocation>>();

  add(key: string, block: number, to: BlockLocation): void {
    const of_key = this.#to.get(key) ?? new Map<number, BlockLocation>();
    of_key.set(block, to);
    this.#to.set(key, of_key);
  }

  /** Whether frames of this segment were moved. */
  concern(key: string): boolean {
    return this.#to.has(key);
  }

  /**
   * The new place of a change. Checks the moved frame against the map: a forged segment in the place of the true one would
   * otherwise become authentic here.
   * @throws SegmentCorruptError
   */
  apply(change: MapChange): MapChange {
    const { block, to } = change;
    const moved = to && this.#to.get(to.key);
    if (!moved) return change;
    const now = moved.get(block);
    if (now === undefined || Buffer.compare(now.hash, to.hash) !== 0)
      throw new SegmentCorruptError(to.key, 'differs from its map', { block });
    return { block, to: now };
  }
}

export class SegmentRewriter {
  readonly #options: RewriteOptions;
  readonly #key: ReturnType<typeof newAttemptKey> | null;
  readonly #writer: SegmentWriter;
  readonly #appended: { readonly key: string; readonly block: number }[] = [];
  readonly #abort = new AbortController();
  #counter = 0;
  #waiting = 0;
  #failure: { readonly cause: unknown } | undefined;

  constructor(options: RewriteOptions) {
    const { store, home, key_prefix, disk_bytes, data_key, signal } = options;
    this.#options = options;
    this.#key = data_key && newAttemptKey(data_key, PURPOSE.segment);
    this.#writer = new SegmentWriter({
      store,
      key_prefix,
      identity: { ...home, disk_bytes, attempt: randomBytes(4).readUInt32LE() },
      key: this.#key,
      segment_bytes: SEGMENT_MAX_BYTES,
      upload_concurrency: 2,
      signal: signal ? AbortSignal.any([signal, this.#abort.signal]) : this.#abort.signal,
      onFreed: (bytes) => {
        this.#waiting -= bytes;
      },
      onFailure: (cause) => {
        this.#failure = { cause };
      },
    });
  }

  /** Copies the live frames of a segment. @throws SegmentCorruptError */
  async take(ref: SegmentRef, isLive: (block: number) => boolean): Promise<void> {
    const { store, keys, pool, signal } = this.#options;
    const alone = new BlockMap();
    alone.applySegment(await readDirectory(store, ref, keys, signal));
    const live = [...alone.inSegmentOrder()].filter(({ block }) => isLive(block));
    for (const { key, block, kind } of live) if (kind === FRAME_KIND.zero) this.#appendZero(key, block);
    for (const run of coalesce(live)) {
      await this.#room();
      const count = run.frames.length;
      const blocks = newBlocks(count);
      const read = await readRun(run, { store, keys, pool, signal });
      blocks.set(read);
      release(read);
      const numbers = Uint32Array.from(run.frames, ({ block }) => block);
      const packed = await pool.pack({
        blocks,
        known: new Uint8Array(count * HASH_BYTES),
        known_present: new Uint8Array(count),
        sealing: this.#key
          ? { key: this.#key.key, home: this.#options.home, numbers, first_counter: this.#counter }
          : undefined,
      });
      if (packed.spare) release(packed.spare);
      this.#counter += count;
      this.#append(run.key, numbers, packed);
    }
  }

  /** Everything is durable when it resolves. */
  async finish(): Promise<{ readonly segments: readonly WrittenSegment[]; readonly moved: Relocations }> {
    const segments = await this.#writer.finish();
    this.#throwIfFailed();
    return { segments, moved: await this.#relocations(segments) };
  }

  /** Deletes the new objects, best effort. */
  async discard(): Promise<void> {
    this.#abort.abort(new Error('given up'));
    await this.#writer.settled();
    await this.#writer.discard();
  }

  /** Reads the new directories back: the new places come from the objects themselves. */
  async #relocations(segments: readonly WrittenSegment[]): Promise<Relocations> {
    const { data_key, store, signal } = this.#options;
    const keys = data_key ? new KeyRing([data_key]) : KeyRing.none;
    const moved = new Relocations();
    let number = 0;
    for (const segment of segments) {
      const alone = new BlockMap();
      const directory = await readDirectory(store, segment, keys, signal);
      alone.applySegment(directory);
      for (const { block } of directory.entries) {
        const old = present(this.#appended[number++], 'what an entry was made of');
        assert(old.block === block, 'entries are in the order of their appending');
        moved.add(old.key, block, present(alone.get(block), 'a block of its segment'));
      }
    }
    assert(number === this.#appended.length, 'every frame has an entry');
    return moved;
  }

  #append(key: string, numbers: Uint32Array, packed: PackedBatch): void {
    let at = 0;
    for (const [i, block] of numbers.entries()) {
      const kind = present(packed.kinds[i], 'a kind') as FrameKind;
      const stored_bytes = present(packed.stored_bytes[i], 'a length');
      const hash = packed.hashes.slice(i * HASH_BYTES, (i + 1) * HASH_BYTES);
      const entry = { block, kind, stored_bytes, mark: present(packed.marks[i], 'a mark'), hash };
      const stored = packed.frames.subarray(at, at + stored_bytes);
      at += stored_bytes;
      this.#appended.push({ key, block });
      this.#waiting += stored_bytes + ENTRY_CHARGE_BYTES;
      this.#writer.append(entry, stored, stored_bytes + ENTRY_CHARGE_BYTES);
    }
  }

  #appendZero(key: string, block: number): void {
    const entry = { block, kind: FRAME_KIND.zero, stored_bytes: 0, mark: 0, hash: ZERO_HASH };
    this.#appended.push({ key, block });
    this.#waiting += ENTRY_CHARGE_BYTES;
    this.#writer.append(entry, new Uint8Array(0), ENTRY_CHARGE_BYTES);
  }

  async #room(): Promise<void> {
    this.#throwIfFailed();
    if (this.#waiting > WAITING_MAX_BYTES) await this.#writer.settled();
    this.#throwIfFailed();
  }

  #throwIfFailed(): void {
    if (this.#failure) throw this.#failure.cause;
  }
}

interface Live {
  readonly source: SegmentSource;
  readonly blocks: BlockSet;
  stored_bytes: number;
}

export class LiveBlocks {
  readonly #segments = new Map<string, Live>();

  /** Adds the blocks that `map` refers to and `before`, which was added earlier, does not. */
  async addChanges(before: BlockMap, map: BlockMap): Promise<void> {
    await inSlices(diffSteps(before, map), ({ to }) => {
      if (to) this.#add(to);
    });
  }

  has(key: string): boolean {
    return this.#segments.has(key);
  }

  isLive(key: string, block: number): boolean {
    return this.#segments.get(key)?.blocks.has(block) ?? false;
  }

  /** Segments of which less than half is live: rewriting them frees more than half of their size. */
  wasteful(): SegmentSource[] {
    return [...this.#segments.values()].flatMap(({ source, blocks, stored_bytes }) => {
      const anew = stored_bytes + blocks.count * ENTRY_BYTES + TRAILER_BYTES;
      return anew * 2 < source.size_bytes ? [source] : [];
    });
  }

  /** A segment has each block at most once, so the block number identifies the frame. */
  #add({ segment, block, stored_bytes }: BlockLocation): void {
    let live = this.#segments.get(segment.key);
    if (!live) {
      live = { source: segment, blocks: new BlockSet(), stored_bytes: 0 };
      this.#segments.set(segment.key, live);
    }
    if (live.blocks.add(block)) live.stored_bytes += stored_bytes;
  }
}
