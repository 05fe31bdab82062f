/**
 * A generation of a disk as an NBD export, read only and fetched as it is read: what the overlay of a lazily started
 * VM has below it until it is whole. Blocks of the map come from the store, all others from the base image.
 *
 * Invariants:
 * - nothing is answered that was not verified;
 * - a store or control plane that is away makes reads wait, not fail, until `refuse` or beyond `patience_ms`;
 * - what is missing or damaged is looked for once more where the head says now (its blocks may have been moved);
 *   damaged still, the read fails and `corrupt` names the segment.
 */
import type { FileHandle } from 'node:fs/promises';
import type { BlockMap } from '../../disk-format/block-map.ts';
import type { FrameRun } from '../../disk-format/read-run.ts';
import { BLOCK_BYTES, SegmentCorruptError } from '../../disk-format/segment-format.ts';
import { backoffMs, pause } from '../../lib/backoff.ts';
import { messageOf } from '../../lib/errors.ts';
import type { Log } from '../../lib/log.ts';
import { NbdError, type NbdExport } from './nbd-export.ts';
import { NBD_EIO } from './nbd-protocol.ts';
import type { RunCache } from './run-cache.ts';
import { RunIndex } from './run-index.ts';

/** The most blocks whose first reads are remembered: 256 MiB. */
export const BOOT_ORDER_MAX = 4_096;
/** A head that was read so lately is not read again for a damaged block. */
const RELOAD_AGAIN_MS = 60_000;
/** From here on reads count as waiting. */
const STALLED_MS = 1_000;

export interface LazyDiskOptions {
  readonly size_bytes: number;
  /** The base image, read where the map says nothing; zeroes behind its end. */
  readonly base: FileHandle;
  readonly runs: RunCache;
  /** The map of the head, loaded where it is not yet; with `anew`, of the head as it is now. */
  readonly map: (anew: boolean) => Promise<BlockMap>;
  readonly log?: Log;
}

/** A segment is damaged, and the head names no other place for the block. */
export class DamagedError extends NbdError {
  override name = 'DamagedError';
  readonly damage: SegmentCorruptError;

  constructor(damage: SegmentCorruptError) {
    super(NBD_EIO, damage.message);
    this.damage = damage;
  }
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
  #reloading: Promise<unknown> | undefined;
  #reloaded_ms = Number.NEGATIVE_INFINITY;
  #refusing = new AbortController();
  #patience_ms = Number.POSITIVE_INFINITY;
  #closed = false;
  #corrupt: SegmentCorruptError | null = null;
  /** Reads that wait for the store or the control plane, and since when. */
  readonly #waiting = new Map<symbol, { readonly since_ms: number; readonly cause: unknown }>();
  readonly #first_reads = new Set<number>();
  #recording = false;
  #served_bytes = 0;

  constructor(options: LazyDiskOptions) {
    this.size_bytes = options.size_bytes;
    this.#options = options;
  }

  /** The damage that made the latest read fail, if any did. */
  get corrupt(): SegmentCorruptError | null {
    return this.#corrupt;
  }
  /** Bytes answered from the map so far. */
  get served_bytes(): number {
    return this.#served_bytes;
  }
  /** Why reads wait, once one does for longer than a moment. */
  get stalled(): { readonly cause: unknown } | null {
    const now = performance.now();
    for (const { since_ms, cause } of this.#waiting.values()) {
      if (now - since_ms >= STALLED_MS) return { cause };
    }
    return null;
  }

  /** Remembers from now on which blocks of the map are read first, and in which order. */
  record(): void {
    this.#recording = true;
  }
  /** What was remembered; remembers no more. */
  takeFirstReads(): number[] {
    this.#recording = false;
    const blocks = [...this.#first_reads];
    this.#first_reads.clear();
    return blocks;
  }

  /** The map, and its blocks by what is fetched together. Waits as a read does. */
  contents(): Promise<{ map: BlockMap; index: RunIndex }> {
    return this.#patiently(() => this.#ready());
  }

  /** All reads that wait fail now; later ones wait again. A guest is stopped by it, and goes on with `cont`. */
  refuse(): void {
    this.#refusing.abort(new Error('waiting reads were refused'));
    if (!this.#closed) this.#refusing = new AbortController();
  }

  /** From now on no read waits. */
  close(): void {
    this.#closed = true;
    this.refuse();
  }

  /** How long reads that begin now may wait. */
  setPatience(ms: number): void {
    this.#patience_ms = ms;
  }

  async read(offset: number, length: number): Promise<Buffer> {
    try {
      return await this.#patiently(async () => {
        const { map, index } = await this.#ready();
        return this.#assemble(map, index, offset, length);
      });
    } catch (error) {
      if (error instanceof DamagedError) this.#corrupt = error.damage;
      throw error;
    }
  }

  /** Fetches what blocks of the map need, so that reads of them soon after do not wait. Waits as a read does. */
  async prefetch(blocks: Iterable<number>): Promise<void> {
    await this.#patiently(async () => {
      const { map, index } = await this.#ready();
      const runs = new Set<FrameRun>();
      for (const block of blocks) {
        const location = map.get(block);
        if (location && !map.isZero(block)) runs.add(index.runFor(map, location));
      }
      await Promise.all([...runs].map((run) => this.#options.runs.read(run)));
    });
  }

  async #ready(): Promise<{ map: BlockMap; index: RunIndex }> {
    const map = await this.#options.map(false);
    this.#index ??= new RunIndex(map);
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
    const content = await this.#options.runs.read(run);
    for (const [i, frame] of run.frames.entries()) {
      if (!blocks.includes(frame.block)) continue;
      const at = frame.block * BLOCK_BYTES - offset;
      const from = Math.max(0, -at);
      const to = Math.min(BLOCK_BYTES, out.length - at);
      content.copy(out, at + from, i * BLOCK_BYTES + from, i * BLOCK_BYTES + to);
    }
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

  /** Does the work, again and again where what it needs is away. */
  async #patiently<T>(work: () => Promise<T>): Promise<T> {
    const waiting = Symbol('read');
    const began_ms = performance.now();
    const patience_ms = this.#patience_ms;
    try {
      for (let attempt = 0; ; attempt++) {
        try {
          return await work();
        } catch (error) {
          if (error instanceof NbdError) throw error;
          if (error instanceof SegmentCorruptError) await this.#lookAgain(error);
          else await this.#wait(waiting, error, attempt, { began_ms, patience_ms });
        }
      }
    } finally {
      this.#waiting.delete(waiting);
    }
  }

  async #wait(
    waiting: symbol,
    cause: unknown,
    attempt: number,
    { began_ms, patience_ms }: { began_ms: number; patience_ms: number },
  ): Promise<void> {
    const since_ms = this.#waiting.get(waiting)?.since_ms ?? began_ms;
    this.#waiting.set(waiting, { since_ms, cause });
    if (attempt === 2) this.#options.log?.warn({ reason: messageOf(cause) }, 'reads of a disk wait');
    const patience = Math.min(patience_ms, this.#patience_ms);
    const over = performance.now() - since_ms >= patience;
    const { signal } = this.#refusing;
    if (over || !(await pause(backoffMs(attempt, 100, 2_000), signal))) {
      throw new NbdError(NBD_EIO, `a read could not wait any longer: ${messageOf(cause)}`);
    }
  }

  /** Resolves when the head was read anew since; else the damage is told. */
  async #lookAgain(error: SegmentCorruptError): Promise<void> {
    if (this.#reloading === undefined && performance.now() - this.#reloaded_ms < RELOAD_AGAIN_MS) {
      this.#options.log?.error({ err: error }, 'a read met a damaged segment');
      throw new DamagedError(error);
    }
    this.#reloading ??= this.#options.map(true).finally(() => {
      this.#reloaded_ms = performance.now();
      this.#index = undefined;
      this.#reloading = undefined;
    });
    await this.#reloading.catch((cause: unknown) => {
      // Away: the block itself is tried again, and waits there.
      if (cause instanceof SegmentCorruptError) return;
      this.#reloaded_ms = Number.NEGATIVE_INFINITY;
      return pause(500, this.#refusing.signal);
    });
    if (this.#refusing.signal.aborted) throw new NbdError(NBD_EIO, error.message);
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
