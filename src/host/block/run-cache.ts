/**
 * A cache of recently fetched and unpacked runs, for all disks of this host.
 *
 * Invariants: concurrent reads of a run share one fetch; at most `fetches` run at once; at most `kept_bytes` are cached, and
 * the least recently used run is evicted first. Only verified runs are cached. An evicted run is released at once, but never
 * during a read: a read's callback may use the blocks only while it runs.
 */
import type { CompressPool } from '../../disk-format/compress-pool.ts';
import type { KeyRing } from '../../disk-format/key-ring.ts';
import { type FrameRun, readRun } from '../../disk-format/read-run.ts';
import type { ObjectStore } from '../../object-store/object-store.ts';
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
