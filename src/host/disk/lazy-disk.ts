/**
 * Serves a generation of a disk as a read-only NBD export that fetches blocks on demand. The overlay of a lazily
 * started VM has this export as its backing file until the overlay is complete. Blocks of the map come from the object
 * store, all others from the base image.
 *
 * Invariants:
 * - Every returned block was verified.
 * - While store or control plane are unavailable, reads wait until they are refused (`refuse`, `close`).
 * - A missing or corrupt block is read again by the map of the present head, as compaction may have moved the block. If
 *   it is still corrupt, the read fails and `takeDamage` names the segment.
 */
import type { FileHandle } from 'node:fs/promises';
import type { BlockMap } from '../../disk-format/block-map.ts';
import type { KeyRing } from '../../disk-format/frame-cipher.ts';
import type { FrameRun } from '../../disk-format/read-run.ts';
import { BLOCK_BYTES, SegmentCorruptError } from '../../disk-format/segment-format.ts';
import { ObjectStoreUnavailableError } from '../../object-store/object-store.ts';
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import { NBD_EIO, NbdError, type NbdExport } from './nbd-protocol.ts';
import { type RunCache, RunIndex } from './run-cache.ts';

/** Blocks whose first reads are recorded: 256 MiB. */
export const BOOT_ORDER_MAX = 4_096;
/** The head is reloaded for a corrupt block at most this often. */
const RELOAD_AGAIN_MS = 60_000;
/** After this time, reads that fail and are retried count as stalled. */
const STALLED_MS = 1_000;
/** After this time, reads without a response count as stalled. */
const UNANSWERED_MS = 10_000;
const UNANSWERED = 'the object store does not answer reads of the disk';

export interface LazyDiskOptions {
  readonly size_bytes: number;
  /** The base image, for blocks absent from the map. Zeroes after its end. */
  readonly base: FileHandle;
  readonly runs: RunCache;
  /** The map of the head, loaded once; with `anew`, reloaded. */
  readonly map: (anew: boolean) => Promise<BlockMap>;
  /** The keys of the map's segments. */
  readonly keys: () => KeyRing;
  readonly log?: Log;
}

/** A segment is corrupt, and the head has no other place for the block. */
export class DamagedError extends NbdError {
  override name = 'DamagedError';
  readonly damage: SegmentCorruptError;

  constructor(damage: SegmentCorruptError) {
    super(NBD_EIO, damage.message);
    this.damage = damage;
  }
}

interface UnderWay {
  readonly since_ms: number;
  /** Why the read has failed so far. */
  cause: unknown;
  readonly abort: AbortController;
}

interface Piece {
  readonly block: number;
  readonly run: FrameRun;
}

export class LazyDisk implements NbdExport {
  readonly size_bytes: number;
  readonly read_only = true;
  readonly min_block_bytes = 512;
  readonly #options: LazyDiskOptions;
  #index: RunIndex | undefined;
  #indexed: BlockMap | undefined;
  #reloading: Promise<unknown> | undefined;
  #reloaded_ms = Number.NEGATIVE_INFINITY;
  #closed = false;
  #damage: SegmentCorruptError | null = null;
  readonly #under_way = new Set<UnderWay>();
  readonly #first_reads = new Set<number>();
  #recording = false;
  #served_bytes = 0;

  constructor(options: LazyDiskOptions) {
    this.size_bytes = options.size_bytes;
    this.#options = options;
  }

  /** The damage that failed a read since this was last called, if any. So it explains one failure, never a later one. */
  takeDamage(): SegmentCorruptError | null {
    const damage = this.#damage;
    this.#damage = null;
    return damage;
  }
  /** Bytes read from the map's segments so far. */
  get served_bytes(): number {
    return this.#served_bytes;
  }
  /** The reason why reads stall; null: none does. */
  get stalled(): { readonly cause: unknown } | null {
    const now = performance.now();
    for (const { since_ms, cause } of this.#under_way) {
      if (cause !== undefined && now - since_ms >= STALLED_MS) return { cause };
      if (now - since_ms >= UNANSWERED_MS) return { cause: new ObjectStoreUnavailableError(UNANSWERED) };
    }
    return null;
  }

  /** Starts recording the order in which blocks of the map are first read. */
  record(): void {
    this.#recording = true;
  }
  /** Returns the record and stops recording. */
  takeFirstReads(): number[] {
    this.#recording = false;
    const blocks = [...this.#first_reads];
    this.#first_reads.clear();
    return blocks;
  }

  /** The map, and its blocks grouped into runs. Waits like a read. */
  contents(): Promise<{ map: BlockMap; index: RunIndex }> {
    return this.#patiently(() => this.#ready());
  }

  /** Fails the reads in flight for longer than `ms`. QEMU then stops the guest until `cont`. Later reads wait again. */
  refuse(ms = 0): void {
    const before = performance.now() - ms;
    for (const { since_ms, abort } of this.#under_way) if (since_ms <= before) abort.abort();
  }

  /** Fails all reads from now on. */
  close(): void {
    this.#closed = true;
    this.refuse();
  }

  async read(offset: number, length: number): Promise<Buffer> {
    try {
      return await this.#patiently(async () => {
        const { map, index } = await this.#ready();
        return this.#assemble(map, index, offset, length);
      });
    } catch (error) {
      if (error instanceof DamagedError) this.#damage = error.damage;
      throw error;
    }
  }

  /** Fetches the runs of blocks, so that reads soon afterwards find them in the cache. Waits like a read. */
  async prefetch(blocks: Iterable<number>): Promise<void> {
    await this.#patiently(async () => {
      const { map, index } = await this.#ready();
      const runs = new Set<FrameRun>();
      for (const block of blocks) {
        const location = map.get(block);
        if (location && !map.isZero(block)) runs.add(index.runFor(map, location));
      }
      const nothing = () => undefined;
      await Promise.all([...runs].map((run) => this.#options.runs.read(run, this.#options.keys(), nothing)));
    });
  }

  async #ready(): Promise<{ map: BlockMap; index: RunIndex }> {
    const map = await this.#options.map(false);
    if (this.#index === undefined || this.#indexed !== map) this.#index = new RunIndex(map);
    this.#indexed = map;
    return { map, index: this.#index };
  }

  async #assemble(map: BlockMap, index: RunIndex, offset: number, length: number): Promise<Buffer> {
    const out = Buffer.alloc(length);
    const end = offset + length;
    const pieces: Piece[] = [];
    const work: Promise<void>[] = [];
    let from_base = -1;
    const readBase = (until: number): void => {
      if (from_base >= 0)
        work.push(this.#readBase(out.subarray(from_base - offset, until - offset), from_base));
      from_base = -1;
    };
    for (let block = Math.floor(offset / BLOCK_BYTES); block * BLOCK_BYTES < end; block++) {
      const start = Math.max(block * BLOCK_BYTES, offset);
      const location = map.get(block);
      if (!location) {
        if (from_base < 0) from_base = start;
        continue;
      }
      readBase(start);
      this.#note(block);
      if (!map.isZero(block)) pieces.push({ block, run: index.runFor(map, location) });
    }
    readBase(end);
    for (const [run, blocks] of byRun(pieces)) work.push(this.#readRun(run, blocks, out, offset));
    await Promise.all(work);
    if (pieces.length > 0) this.#served_bytes += length;
    return out;
  }

  async #readRun(run: FrameRun, blocks: readonly number[], out: Buffer, offset: number): Promise<void> {
    await this.#options.runs.read(run, this.#options.keys(), (content) => {
      for (const [i, frame] of run.frames.entries()) {
        if (!blocks.includes(frame.block)) continue;
        const at = frame.block * BLOCK_BYTES - offset;
        const from = Math.max(0, -at);
        const to = Math.min(BLOCK_BYTES, out.length - at);
        content.copy(out, at + from, i * BLOCK_BYTES + from, i * BLOCK_BYTES + to);
      }
    });
  }

  async #readBase(into: Buffer, offset: number): Promise<void> {
    for (let done = 0; done < into.length; ) {
      const { bytesRead } = await this.#options.base.read(into, done, into.length - done, offset + done);
      if (bytesRead === 0) return;
      done += bytesRead;
    }
  }

  #note(block: number): void {
    if (this.#recording && this.#first_reads.size < BOOT_ORDER_MAX) this.#first_reads.add(block);
  }

  /** Runs `work`, and retries while store or control plane are unavailable, until it succeeds or is refused. */
  async #patiently<T>(work: () => Promise<T>): Promise<T> {
    const read: UnderWay = { since_ms: performance.now(), cause: undefined, abort: new AbortController() };
    if (this.#closed) throw new NbdError(NBD_EIO, 'the disk is closed');
    this.#under_way.add(read);
    try {
      for (let attempt = 0; ; attempt++) {
        try {
          return await unlessAborted(work(), read.abort.signal);
        } catch (error) {
          if (error instanceof NbdError) throw error;
          if (error instanceof SegmentCorruptError) await this.#lookAgain(error, read);
          else await this.#wait(error, attempt, read);
        }
      }
    } finally {
      this.#under_way.delete(read);
    }
  }

  async #wait(cause: unknown, attempt: number, read: UnderWay): Promise<void> {
    read.cause = cause;
    if (attempt === 2) this.#options.log?.warn({ reason: messageOf(cause) }, 'reads of a disk wait');
    if (!(await pause(backoffMs(attempt, 100, 2_000), read.abort.signal))) {
      throw new NbdError(NBD_EIO, `a read was refused after it had waited: ${messageOf(cause)}`);
    }
  }

  /** Resolves when the head was reloaded since the read began; else throws the damage. */
  async #lookAgain(error: SegmentCorruptError, read: UnderWay): Promise<void> {
    if (this.#reloading === undefined && performance.now() - this.#reloaded_ms < RELOAD_AGAIN_MS) {
      this.#options.log?.error({ err: error }, 'a read met a damaged segment');
      throw new DamagedError(error);
    }
    this.#reloading ??= this.#options.map(true).finally(() => {
      this.#reloaded_ms = performance.now();
      this.#index = undefined;
      this.#reloading = undefined;
    });
    try {
      await unlessAborted(this.#reloading, read.abort.signal);
    } catch (cause) {
      if (cause instanceof NbdError) throw cause;
      // The caller then retries the block. If the reload failed, it is retried too.
      if (cause instanceof SegmentCorruptError) return;
      this.#reloaded_ms = Number.NEGATIVE_INFINITY;
      await this.#wait(cause, 3, read);
    }
  }
}

function byRun(pieces: readonly Piece[]): Map<FrameRun, number[]> {
  const runs = new Map<FrameRun, number[]>();
  for (const { block, run } of pieces) {
    const blocks = runs.get(run);
    if (blocks) blocks.push(block);
    else runs.set(run, [block]);
  }
  return runs;
}

/** Settles with `work`, or rejects as soon as `signal` aborts, without stopping `work`. */
function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const refuse = () => reject(new NbdError(NBD_EIO, 'a read was refused while it waited'));
    if (signal.aborted) refuse();
    signal.addEventListener('abort', refuse, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', refuse));
  });
}
