/**
 * Caches recently fetched runs, for all disks of this host. A run is what one GET fetches: neighbouring blocks of a
 * segment (disk-format/read-run.ts). `RunIndex` groups the blocks of a disk into runs.
 *
 * Invariants:
 * - Concurrent reads of a run share one fetch. At most `fetches` run at once.
 * - Only verified runs are cached, at most `kept_bytes`. The least recently used run is evicted first.
 * - The callback of a read may use the blocks only until it returns: an evicted run is released at once after that.
 */
import type { BlockLocation, BlockMap } from '../../disk-format/block-map.ts';
import type { CompressPool } from '../../disk-format/compress-pool.ts';
import type { KeyRing } from '../../disk-format/frame-cipher.ts';
import { coalesce, type FrameRun, readRun } from '../../disk-format/read-run.ts';
import { FRAME_KIND } from '../../disk-format/segment-format.ts';
import type { ObjectStore } from '../../object-store/object-store.ts';
import { assert, present } from '../../shared/assert.ts';
import { release } from '../../shared/release.ts';
import { ByteBudget } from './byte-budget.ts';

export interface RunCacheOptions {
  readonly store: ObjectStore;
  /** Unpacks in worker threads. When absent, on the calling thread. */
  readonly pool?: CompressPool;
  readonly kept_bytes?: number;
  readonly fetches?: number;
}

interface Fetch {
  readonly blocks: Promise<Buffer>;
  /** Reads that wait for it. */
  readers: number;
}

export class RunCache {
  readonly #store: ObjectStore;
  readonly #pool: CompressPool | undefined;
  readonly #kept_bytes: number;
  readonly #slots: ByteBudget;
  readonly #kept = new Map<string, Buffer>();
  readonly #fetching = new Map<string, Fetch>();
  #held_bytes = 0;
  #fetched_bytes = 0;
  #requests = 0;

  constructor({ store, pool, kept_bytes = 8 * 1024 * 1024, fetches = 3 }: RunCacheOptions) {
    this.#store = store;
    this.#pool = pool;
    this.#kept_bytes = kept_bytes;
    this.#slots = new ByteBudget(fetches);
  }

  get held_bytes(): number {
    return this.#held_bytes;
  }
  /** The fetches from the store so far. */
  get fetched(): { readonly requests: number; readonly bytes: number } {
    return { requests: this.#requests, bytes: this.#fetched_bytes };
  }

  /**
   * Calls `look` with the blocks of a run, 64 KiB each, in the order of its frames. `look` must neither change nor keep them.
   * `keys`: the disk's.
   * @throws SegmentCorruptError, ObjectStoreUnavailableError
   */
  async read(run: FrameRun, keys: KeyRing, look: (blocks: Buffer) => void): Promise<void> {
    const name = nameOf(run);
    const kept = this.#kept.get(name);
    if (kept) {
      this.#kept.delete(name);
      this.#kept.set(name, kept);
      look(kept);
      return;
    }
    const fetch = this.#fetching.get(name) ?? this.#begin(run, keys, name);
    fetch.readers += 1;
    let blocks: Buffer | undefined;
    try {
      blocks = await fetch.blocks;
      look(blocks);
    } finally {
      fetch.readers -= 1;
      if (fetch.readers === 0) {
        this.#fetching.delete(name);
        if (blocks) this.#keep(name, blocks);
      }
    }
  }

  #begin(run: FrameRun, keys: KeyRing, name: string): Fetch {
    const fetch = { blocks: this.#fetch(run, keys), readers: 0 };
    this.#fetching.set(name, fetch);
    return fetch;
  }

  async #fetch(run: FrameRun, keys: KeyRing): Promise<Buffer> {
    await this.#slots.take(1);
    try {
      this.#requests += 1;
      const blocks = await readRun(run, { store: this.#store, pool: this.#pool, keys });
      this.#fetched_bytes += run.length;
      return blocks;
    } finally {
      this.#slots.give(1);
    }
  }

  /** Caches a run after all waiting reads. */
  #keep(name: string, blocks: Buffer): void {
    this.#kept.set(name, blocks);
    this.#held_bytes += blocks.length;
    for (const [oldest, bytes] of this.#kept) {
      if (this.#held_bytes <= this.#kept_bytes) break;
      this.#kept.delete(oldest);
      this.#held_bytes -= bytes.length;
      release(bytes);
    }
  }
}

function nameOf({ key, offset, length, frames }: FrameRun): string {
  return `${key}@${offset}+${length}/${frames.length}`;
}

const KEPT_RUNS = 256;

/**
 * Groups blocks into runs: neighbours in a segment that one GET fetches (read-run.ts).
 *
 * Built once from a map, 12 bytes a block. The map may change afterwards: a run is composed from the present places of its
 * blocks, so a moved block drops out of it.
 */
export class RunIndex {
  /** Blocks with data, in segment order. */
  readonly #blocks: Uint32Array;
  /** The start of each run in `#blocks`, and the end of the last. */
  readonly #starts: Uint32Array;
  /** Sorted block numbers; `#runs` has the run of each. */
  readonly #sorted: Uint32Array;
  readonly #run_of: Uint32Array;
  /** Recently composed runs, by number. */
  readonly #kept = new Map<number, readonly FrameRun[]>();

  constructor(map: BlockMap) {
    const blocks: number[] = [];
    const starts: number[] = [];
    for (const run of coalesce(map.inSegmentOrder())) {
      starts.push(blocks.length);
      for (const { block } of run.frames) blocks.push(block);
    }
    starts.push(blocks.length);
    this.#blocks = Uint32Array.from(blocks);
    this.#starts = Uint32Array.from(starts);
    const places = Uint32Array.from(blocks, (_, place) => place);
    places.sort((a, b) => (blocks[a] ?? 0) - (blocks[b] ?? 0));
    this.#sorted = Uint32Array.from(places, (place) => blocks[place] ?? 0);
    const run_at = new Uint32Array(blocks.length);
    for (let run = 0; run < this.count; run++) run_at.fill(run, starts[run], starts[run + 1]);
    this.#run_of = Uint32Array.from(places, (place) => run_at[place] ?? 0);
  }

  /** The number of runs. */
  get count(): number {
    return this.#starts.length - 1;
  }

  /** The blocks of a run at the time the index was built. */
  blocksOf(run: number): Uint32Array {
    return this.#blocks.subarray(this.#starts[run], this.#starts[run + 1]);
  }

  /** The run of a block, or -1. */
  find(block: number): number {
    let low = 0;
    let high = this.#sorted.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((this.#sorted[middle] ?? 0) < block) low = middle + 1;
      else high = middle;
    }
    return this.#sorted[low] === block ? (this.#run_of[low] ?? -1) : -1;
  }

  /** The run to fetch for a block at `location`. */
  runFor(map: BlockMap, location: BlockLocation): FrameRun {
    const number = this.find(location.block);
    if (number < 0) return alone(location);
    const kept = holding(this.#kept.get(number), location);
    if (kept) return kept;
    const locations = [...this.blocksOf(number)].map((block) => present(map.get(block), 'a block of a run'));
    const runs = [...coalesce(locations)];
    this.#kept.delete(number);
    this.#kept.set(number, runs);
    const oldest = this.#kept.keys().next();
    if (this.#kept.size > KEPT_RUNS && !oldest.done) this.#kept.delete(oldest.value);
    return holding(runs, location) ?? alone(location);
  }
}

function holding(runs: readonly FrameRun[] | undefined, wanted: BlockLocation): FrameRun | undefined {
  return runs?.find(
    ({ key, frames }) =>
      key === wanted.key &&
      frames.some(({ block, offset }) => block === wanted.block && offset === wanted.offset),
  );
}

function alone(location: BlockLocation): FrameRun {
  const { key, offset, stored_bytes, kind } = location;
  assert(kind !== FRAME_KIND.zero, 'a zero block needs no fetch');
  return { key, offset, length: stored_bytes, frames: [location] };
}
