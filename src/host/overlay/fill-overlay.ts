/**
 * Copies a lazily started VM's disk into its overlay until it is whole, beside the guest.
 *
 * QEMU itself copies: an NBD CACHE request on its own read-only export of the overlay is a copy-on-read. It leaves
 * alone what the guest has written, is atomic with the guest's writes, and marks nothing dirty
 * (docs/adr/0013-lazy-restore.md). A range is fetched into our memory first, so that the copy, which holds up the
 * guest's requests to that range, is short.
 *
 * Order: what the last boot read first, at once; when the guest is up, the rest as it lies in the segments, at a
 * limited rate. Nothing is remembered of how far it came: what is there already is passed over by QEMU.
 */
import { BLOCK_BYTES, FRAME_KIND } from '../../disk-format/segment-format.ts';
import { backoffMs, pause } from '../../lib/backoff.ts';
import { messageOf } from '../../lib/errors.ts';
import type { Log } from '../../lib/log.ts';
import { Signal } from '../../lib/signal.ts';
import { BOOT_ORDER_MAX, DamagedError, type LazyDisk } from '../block/lazy-disk.ts';
import type { NbdClient } from '../block/nbd-client.ts';
import { NbdError } from '../block/nbd-export.ts';
import type { OverlayExport } from './overlay-export.ts';

const FILL_BYTES_PER_SECOND = 32 * 1024 * 1024;
/**
 * QEMU copies whole clusters of the overlay, and must be asked for whole ones: QEMU 7.2 dies of an assertion
 * (`skip_bytes < pnum`) at a copy-on-read that begins inside a cluster of which some sub-clusters are there.
 */
const CLUSTER_BLOCKS = 2;
/** The most in one request: bounds how long it holds up the guest, and QEMU's memory for it. */
const RANGE_BLOCKS = 16;
const PREFETCHES = 6;
/** After the guest is up, while its services still start. */
const AFTER_BOOT_MS = 3_000;
/** A guest that does not come up does not keep its disk from being filled. */
const BOOT_WAIT_MS = 120_000;
const RETRY_MS = 10_000;
const RETRY_DAMAGED_MS = 300_000;

export interface OverlayFillOptions {
  readonly exported: OverlayExport;
  readonly lazy: LazyDisk;
  /** False where nearly all is in the overlay already: what is not, is fetched as QEMU asks for it. */
  readonly fetch_ahead: boolean;
  /** Blocks that the last boot read first. */
  readonly order: readonly number[];
  readonly log: Log;
  readonly sayOrder: (blocks: readonly number[]) => Promise<void>;
  /** All is in the overlay, and on the disk. */
  readonly filled: () => Promise<void>;
  readonly bytes_per_second?: number;
  /** Between the guest's coming up and the filling. */
  readonly after_boot_ms?: number;
  /** The least bound of the pause after a failure. */
  readonly retry_ms?: number;
}

/** Neighbouring blocks of the disk. */
interface Range {
  readonly first: number;
  readonly count: number;
}

export class OverlayFill {
  readonly #options: OverlayFillOptions;
  readonly #stopping = new AbortController();
  readonly #booted = new AbortController();
  #done: Promise<void> = Promise.resolve();
  #client: NbdClient | undefined;
  /** All is in the overlay, and on the disk. */
  #whole = false;
  /** Copies under way, and flushes that want none. */
  #copying = 0;
  #resting = 0;
  readonly #changed = new Signal();

  constructor(options: OverlayFillOptions) {
    this.#options = options;
  }

  start(): void {
    this.#options.lazy.record();
    this.#done = this.#insist();
  }

  booted(): void {
    this.#booted.abort();
  }

  /** Resolves when nothing is being copied; nothing is until the answer is called. @throws the signal's reason */
  async rest(signal?: AbortSignal): Promise<() => void> {
    this.#resting += 1;
    let over = false;
    const goOn = () => {
      if (!over) this.#resting -= 1;
      over = true;
      this.#changed.notify();
    };
    const { signal: stopping } = this.#stopping;
    const either = signal ? AbortSignal.any([stopping, signal]) : stopping;
    // A copy lasts as long as QEMU does not answer.
    while (this.#copying > 0 && !either.aborted) await this.#changed.wait({ signal: either });
    if (!signal?.aborted) return goOn;
    goOn();
    throw signal.reason;
  }

  async stop(): Promise<void> {
    this.#stopping.abort(new Error('the filling is stopped'));
    this.#client?.destroy();
    await this.#done;
  }

  /** Its end must not hang on a QEMU that was silent for a moment. */
  async #insist(): Promise<void> {
    const { log, retry_ms = RETRY_MS } = this.#options;
    const { signal } = this.#stopping;
    for (let attempt = 0; !signal.aborted; attempt++) {
      try {
        return await this.#run();
      } catch (error) {
        this.#client?.destroy();
        this.#client = undefined;
        if (signal.aborted) return;
        log.warn({ reason: messageOf(error) }, 'the overlay is not filled yet; it is tried again');
        await pause(backoffMs(attempt, retry_ms, RETRY_DAMAGED_MS), signal);
      }
    }
  }

  async #run(): Promise<void> {
    if (!this.#whole) await this.#copyAll();
    if (!this.#whole) return;
    await this.#exclusively(async () => {
      await this.#client?.disconnect();
      this.#client = undefined;
      await this.#options.filled();
    });
  }

  async #copyAll(): Promise<void> {
    const { lazy, order, log } = this.#options;
    const { signal } = this.#stopping;
    this.#client = await this.#options.exported.connect(signal);
    const { map } = await lazy.contents();
    const known = order.filter((block) => map.has(block));
    await this.#prefetch(known);
    await this.#untilBooted();
    if (signal.aborted) return;
    await this.#sayOrder(known);
    let pending: Iterable<Range> = await this.#ranges();
    for (;;) {
      const { failed, damaged } = await this.#fill(pending);
      if (signal.aborted) return;
      if (failed.length === 0) break;
      log.warn(
        { ranges: failed.length, damaged },
        'not all of the overlay could be filled; it is tried again',
      );
      await pause(damaged ? RETRY_DAMAGED_MS : RETRY_MS, signal);
      pending = failed;
    }
    await this.#exclusively(async () => this.#client?.flush());
    this.#whole = true;
  }

  /** As quickly as it goes: a guest waits for these. What fails is left to the filling. */
  async #prefetch(blocks: readonly number[]): Promise<void> {
    const clusters = [...new Set(blocks.map((block) => block - (block % CLUSTER_BLOCKS)))].values();
    const worker = async (): Promise<void> => {
      for (const first of clusters) {
        if (this.#stopping.signal.aborted) return;
        await this.#copy({ first, count: CLUSTER_BLOCKS }).catch(() => undefined);
      }
    };
    await Promise.all(Array.from({ length: PREFETCHES }, worker));
  }

  async #untilBooted(): Promise<void> {
    const either = AbortSignal.any([this.#stopping.signal, this.#booted.signal]);
    await pause(BOOT_WAIT_MS, either);
    await pause(this.#options.after_boot_ms ?? AFTER_BOOT_MS, this.#stopping.signal);
  }

  /** What was prefetched never comes by here again, so the order grows by what was missing from it. */
  async #sayOrder(known: readonly number[]): Promise<void> {
    const { lazy, sayOrder, log } = this.#options;
    const blocks = [...new Set([...known, ...lazy.takeFirstReads()])].slice(0, BOOT_ORDER_MAX);
    if (blocks.length === known.length) return;
    await sayOrder(blocks).catch((error: unknown) =>
      log.debug({ reason: messageOf(error) }, 'the order of the boot was not heard'),
    );
  }

  /** All that the map has, in the order to fetch it; zeroes, which need no fetch, last. The map may move on meanwhile. */
  async #ranges(): Promise<Iterable<Range>> {
    const { map, index } = await this.#options.lazy.contents();
    const zeroes: number[] = [];
    for (const { block, kind } of map.inBlockOrder()) if (kind === FRAME_KIND.zero) zeroes.push(block);
    return (function* () {
      for (let run = 0; run < index.count; run++) yield* rangesOf(index.blocksOf(run).toSorted());
      yield* rangesOf(zeroes);
    })();
  }

  async #fill(ranges: Iterable<Range>): Promise<{ failed: Range[]; damaged: boolean }> {
    const { lazy, bytes_per_second = FILL_BYTES_PER_SECOND } = this.#options;
    const { signal } = this.#stopping;
    const failed: Range[] = [];
    let damaged = false;
    for (const range of ranges) {
      if (signal.aborted) break;
      const began_ms = performance.now();
      const before = lazy.served_bytes;
      try {
        await this.#copy(range);
      } catch (error) {
        // Anything else is the end of the connection, or our own.
        if (!(error instanceof NbdError) || signal.aborted) throw error;
        damaged ||= error instanceof DamagedError;
        failed.push(range);
      }
      // What the guest reads meanwhile counts too: it goes first.
      const due_ms = ((lazy.served_bytes - before) / bytes_per_second) * 1000;
      const early_ms = due_ms - (performance.now() - began_ms);
      if (early_ms >= 1) await pause(early_ms, signal);
    }
    return { failed, damaged };
  }

  async #copy({ first, count }: Range): Promise<void> {
    const { lazy, fetch_ahead } = this.#options;
    const from = first - (first % CLUSTER_BLOCKS);
    const to = Math.ceil((first + count) / CLUSTER_BLOCKS) * CLUSTER_BLOCKS;
    if (fetch_ahead) await lazy.prefetch(Array.from({ length: to - from }, (_, i) => from + i));
    const offset = from * BLOCK_BYTES;
    const length = Math.min(to * BLOCK_BYTES, lazy.size_bytes) - offset;
    await this.#exclusively(async () => this.#client?.cache(offset, length));
  }

  /** Not while a flush is under way. */
  async #exclusively(work: () => Promise<void>): Promise<void> {
    const { signal } = this.#stopping;
    while (this.#resting > 0 && !signal.aborted) await this.#changed.wait({ signal });
    signal.throwIfAborted();
    this.#copying += 1;
    try {
      await work();
    } finally {
      this.#copying -= 1;
      this.#changed.notify();
    }
  }
}

/** Rising block numbers as ranges of neighbours. */
function* rangesOf(blocks: Iterable<number>): Generator<Range> {
  let first = -1;
  let count = 0;
  for (const block of blocks) {
    if (count > 0 && block === first + count && count < RANGE_BLOCKS) {
      count += 1;
      continue;
    }
    if (count > 0) yield { first, count };
    first = block;
    count = 1;
  }
  if (count > 0) yield { first, count };
}
