/**
 * Feeds the overlay of a lazily started VM until it is whole: serves the NBD export below the overlay, from which QEMU
 * reads, and fills the overlay with the rest of the disk beside the running guest.
 *
 *   open ──▶ (QEMU starts or is adopted) ──▶ fill ──▶ detached: QEMU reads the image itself, and the export is closed
 *
 * - The export is served before anything is sent to QEMU's monitor: QEMU may block until a read is answered.
 * - While the agent is away, QEMU holds its reads and reconnects (`reconnect-delay`). The guest sees no error.
 * - The filling pauses during a flush, and no flush begins while reads wait: before QEMU takes a point in time, it
 *   finishes its reads, and the guest is paused until then.
 */

import { chmod, type FileHandle, open } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { BLOCK_BYTES, FRAME_KIND, type SegmentCorruptError } from '../../disk-format/segment-format.ts';
import { Signal } from '../../shared/concurrency.ts';
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import type { HostContext } from '../host-context.ts';
import { prepareRuntimeDir, takeRuntimeDir, type VmUser } from '../qemu/confinement.ts';
import { type LazyBacking, NODES, overlayNode } from '../qemu/qemu-command.ts';
import type { QmpClient } from '../qemu/qmp-client.ts';
import { type DiskState, FencedError, type VmEpoch } from './disk-state.ts';
import { BOOT_ORDER_MAX, DamagedError, LazyDisk } from './lazy-disk.ts';
import { NbdClient } from './nbd-client.ts';
import { NbdError } from './nbd-protocol.ts';
import { NbdServer } from './nbd-server.ts';

const EXPORT = 'lazy';
/** QEMU's connection, and one that is being closed. Bounds what a hostile QEMU can make us hold. */
const CONNECTIONS = 2;
/** After this QEMU fails a read; the agent has been away for a day then. */
const RECONNECT_DELAY_SECONDS = 86_400;
/** How long a flush waits for reads; then it fails, so that the guest is not paused for longer. */
const FLUSH_PATIENCE_MS = 5_000;

export interface LazyOverlayOptions {
  readonly context: HostContext;
  /** The folder of the VM's sockets. */
  readonly runtime_dir: string;
  readonly disk: DiskState;
  readonly owner: VmUser | null;
  readonly size_bytes: number;
  /** The image, a raw file. */
  readonly base_path: string;
}

export interface Filling {
  readonly qmp: QmpClient;
  readonly exported: OverlayExport;
  readonly placement: VmEpoch;
  /** Called after QEMU reads the image itself: updates the VM's record. */
  readonly detached: () => Promise<void>;
}

export class LazyOverlay {
  readonly backing: LazyBacking;
  readonly #options: LazyOverlayOptions;
  readonly #server: NbdServer;
  readonly #disk: LazyDisk;
  readonly #base: FileHandle;
  #fill: OverlayFill | undefined;
  #closed: Promise<void> | undefined;

  private constructor(options: LazyOverlayOptions, server: NbdServer, base: FileHandle, disk: LazyDisk) {
    this.#options = options;
    this.#server = server;
    this.#base = base;
    this.#disk = disk;
    this.backing = {
      socket_path: server.path,
      export_name: EXPORT,
      reconnect_delay_seconds: RECONNECT_DELAY_SECONDS,
    };
  }

  /** Serves at once. The map is loaded at the first read. */
  static async open(options: LazyOverlayOptions): Promise<LazyOverlay> {
    const { context, runtime_dir, disk: state, owner, size_bytes, base_path } = options;
    const base = await open(base_path, 'r');
    try {
      const disk = new LazyDisk({
        size_bytes,
        base,
        runs: context.runs,
        map: (anew) => state.mapForReads(anew),
        keys: () => state.keys,
        log: context.log,
      });
      const path = join(runtime_dir, 'lazy.sock');
      const server = await NbdServer.listen({
        path,
        max_connections: CONNECTIONS,
        log: context.log,
        ...(owner ?? {}),
      });
      server.addExport(EXPORT, disk);
      return new LazyOverlay(options, server, base, disk);
    } catch (error) {
      await base.close();
      throw error;
    }
  }

  /** The damage that failed a read since this was last called; the caller knows whose read failed. */
  takeDamage(): SegmentCorruptError | null {
    return this.#disk.takeDamage();
  }

  /** Fetches first what the last boot read first; the rest follows once the guest is up. */
  fill({ qmp, exported, placement, detached }: Filling): void {
    const { context, disk } = this.#options;
    const unverified = disk.filled === 'unverified';
    const before = context.runs.fetched;
    this.#fill = new OverlayFill({
      exported,
      lazy: this.#disk,
      fetch_ahead: !unverified,
      order: disk.headOrNull?.boot_order ?? [],
      log: context.log,
      reportOrder: async (blocks) => {
        const { epoch } = placement;
        await context.client.bootOrder({ instance_id: disk.instance_id, epoch, blocks });
      },
      syncFailed: () => disk.noteSyncFailed(placement),
      filled: async () => {
        // The sidecar first: it is true as soon as the data is on the disk, even while QEMU still has the export open.
        disk.setFilled('yes');
        await disk.markDirty(placement);
        await qmp.execute('blockdev-reopen', { options: [overlayNode(NODES.base)] });
        // Fails if an earlier agent died after this command.
        await qmp.execute('blockdev-del', { 'node-name': NODES.lazy }).catch(() => undefined);
        await detached();
        const { requests, bytes } = context.runs.fetched;
        const fetched = { requests: requests - before.requests, bytes: bytes - before.bytes };
        context.log.info({ fetched }, 'the overlay is whole');
        const { served_bytes } = this.#disk;
        if (unverified && served_bytes > 0)
          context.log.warn(
            { served_bytes },
            'the overlay of a killed VM lacked blocks of the head; they were read from the head',
          );
      },
    });
    this.#fill.start();
  }

  /** The filling runs, or is paused. */
  get filling(): boolean {
    return this.#fill !== undefined;
  }

  /** The guest is up: the rest of the disk may be fetched. */
  booted(): void {
    this.#fill?.booted();
  }

  /** Runs a flush while the filling is paused. @throws why reads wait, if they do; the signal's reason, before the flush begins */
  async duringFlush<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T> {
    let why: unknown;
    const impatience = setInterval(() => {
      const { stalled } = this.#disk;
      if (!stalled) return;
      why = stalled.cause;
      this.#disk.refuse(FLUSH_PATIENCE_MS);
    }, 500);
    let resume: (() => void) | undefined;
    try {
      resume = await this.#fill?.pause(signal);
      const { stalled } = this.#disk;
      if (stalled) throw stalled.cause;
      this.#disk.takeDamage();
      return await work();
    } catch (error) {
      if (error instanceof FencedError) throw error;
      // QEMU reports only that a read failed.
      throw this.#disk.takeDamage() ?? why ?? error;
    } finally {
      clearInterval(impatience);
      resume?.();
    }
  }

  /** Stops the filling until {@link fill} is called again. Reads are still served. */
  async stopFilling(): Promise<void> {
    await this.#fill?.stop();
    this.#fill = undefined;
  }

  /** Fails the waiting reads, which pauses the guest until `cont`. */
  refuseReads(): void {
    this.#disk.refuse();
  }

  /** Before QEMU is ended: fails all reads and stops the filling. */
  async refuseAll(): Promise<void> {
    this.#disk.close();
    await this.#fill?.stop();
  }

  /** Disconnects. A QEMU that still reads reconnects to the next server. */
  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    // Cut the connection before reads are refused: QEMU repeats a read without an answer.
    const cut = this.#server.cut();
    this.#disk.close();
    await Promise.all([cut, this.#fill?.stop()]);
    await this.#base.close();
  }
}

const OVERLAY_EXPORT = 'overlay';
/** The filling's and a flush's, and one of each that is being closed. */
const OVERLAY_CONNECTIONS = 4;

export interface OverlayExportOptions {
  readonly qmp: QmpClient;
  readonly socket_path: string;
  /** QEMU's user, who owns the socket's folder while QEMU creates the socket; null: our own user. */
  readonly owner: VmUser | null;
}

/**
 * QEMU's own read-only NBD export of a VM's overlay, for this agent alone. The filling copies through it, and a flush syncs the
 * overlay through it. QEMU's NBD server starts at the first use and ends with QEMU.
 */
export class OverlayExport {
  readonly #options: OverlayExportOptions;
  #served: Promise<void> | undefined;

  constructor(options: OverlayExportOptions) {
    this.#options = options;
  }

  /** @throws QmpError, NbdProtocolError, or the signal's reason */
  async connect(signal: AbortSignal): Promise<NbdClient> {
    this.#served ??= this.#serve().catch((error: unknown) => {
      this.#served = undefined;
      throw error;
    });
    await this.#served;
    return NbdClient.connect({ path: this.#options.socket_path, export_name: OVERLAY_EXPORT, signal });
  }

  /** Ends the export, and its connections, until the next {@link connect}. */
  async withdraw(): Promise<void> {
    this.#served = undefined;
    // Fails if there is none.
    await this.#options.qmp.execute('nbd-server-stop', undefined).catch(() => undefined);
  }

  /**
   * Makes QEMU write its cached part of the overlay, above all its tables, and sync the file.
   * @throws NbdError if the host's disk fails; the signal's reason
   */
  async syncToDisk(signal: AbortSignal): Promise<void> {
    const client = await this.connect(signal);
    const onAbort = () => client.destroy();
    signal.addEventListener('abort', onAbort, { once: true });
    try {
      await client.flush();
      await client.disconnect();
    } finally {
      signal.removeEventListener('abort', onAbort);
      client.destroy();
    }
  }

  async #serve(): Promise<void> {
    const { qmp, socket_path: path, owner } = this.#options;
    // An earlier agent may have left a server.
    await qmp.execute('nbd-server-stop', undefined).catch(() => undefined);
    if (owner) prepareRuntimeDir(dirname(path), owner.uid, owner.gid);
    await qmp.execute('nbd-server-start', {
      addr: { type: 'unix', data: { path } },
      'max-connections': OVERLAY_CONNECTIONS,
    });
    if (owner) takeRuntimeDir(dirname(path), owner.uid, [path]);
    else await chmod(path, 0o600);
    await qmp.execute('block-export-add', {
      type: 'nbd',
      id: OVERLAY_EXPORT,
      'node-name': NODES.overlay,
      name: OVERLAY_EXPORT,
      writable: false,
    });
  }
}

const FILL_BYTES_PER_SECOND = 32 * 1024 * 1024;
/**
 * QEMU copies whole clusters of the overlay. Requests must be whole clusters too: QEMU 7.2 fails an assertion
 * (`skip_bytes < pnum`) at a copy-on-read that begins inside a cluster that has some sub-clusters.
 */
const CLUSTER_BLOCKS = 2;
/** In one request. Bounds how long it blocks the guest, and QEMU's memory for it. */
const RANGE_BLOCKS = 16;
const PREFETCHES = 6;
/** After the guest is up: its services still start. */
const AFTER_BOOT_MS = 3_000;
/** The disk is filled even if the guest never comes up. */
const BOOT_WAIT_MS = 120_000;
const RETRY_MS = 10_000;
const RETRY_DAMAGED_MS = 300_000;

export interface OverlayFillOptions {
  readonly exported: OverlayExport;
  readonly lazy: LazyDisk;
  /** False if the overlay has nearly everything: the rest is fetched when QEMU reads it. */
  readonly fetch_ahead: boolean;
  /** Blocks that the last boot read first. */
  readonly order: readonly number[];
  readonly log: Log;
  readonly reportOrder: (blocks: readonly number[]) => Promise<void>;
  /** The overlay is whole, and synced to the disk. */
  readonly filled: () => Promise<void>;
  /** The host's disk does not take the overlay. */
  readonly syncFailed: () => Promise<void>;
  readonly bytes_per_second?: number;
  /** Between the guest being up and the filling. */
  readonly after_boot_ms?: number;
  /** The base of the backoff after a failure. */
  readonly retry_ms?: number;
}

/** Neighbouring blocks of the disk. */
interface Range {
  readonly first: number;
  readonly count: number;
}

/**
 * Copies a lazily started VM's disk into its overlay until it is whole, beside the guest.
 *
 * QEMU itself copies: an NBD CACHE request on its own read-only export of the overlay is a copy-on-read. It skips what the guest
 * has written, is atomic with the guest's writes, and marks nothing dirty (docs/adr/0014-lazy-restore.md). Each range is first
 * fetched into our memory, so that the copy, which blocks the guest's requests to that range, is short.
 *
 * Order: first, without delay, the ranges that the last boot read first. When the guest is up, the rest in the order of the
 * segments, at a limited rate. Progress is not recorded, because QEMU skips existing clusters.
 */
export class OverlayFill {
  readonly #options: OverlayFillOptions;
  readonly #stopping = new AbortController();
  readonly #booted = new AbortController();
  #done: Promise<void> = Promise.resolve();
  #client: NbdClient | undefined;
  /** The overlay is whole, and synced to the disk. */
  #whole = false;
  #copies = 0;
  /** Flushes under way. */
  #pauses = 0;
  readonly #changed = new Signal();

  constructor(options: OverlayFillOptions) {
    this.#options = options;
  }

  start(): void {
    this.#options.lazy.record();
    this.#done = this.#runUntilDone();
  }

  booted(): void {
    this.#booted.abort();
  }

  /** Pauses: resolves when no copy is under way, with the function that resumes. @throws the signal's reason */
  async pause(signal?: AbortSignal): Promise<() => void> {
    this.#pauses += 1;
    let over = false;
    const resume = () => {
      if (!over) this.#pauses -= 1;
      over = true;
      this.#changed.notify();
    };
    const { signal: stopping } = this.#stopping;
    const either = signal ? AbortSignal.any([stopping, signal]) : stopping;
    // A copy lasts as long as QEMU does not answer.
    while (this.#copies > 0 && !either.aborted) await this.#changed.wait({ signal: either });
    if (!signal?.aborted) return resume;
    resume();
    throw signal.reason;
  }

  async stop(): Promise<void> {
    this.#stopping.abort(new Error('the filling is stopped'));
    this.#client?.destroy();
    await this.#done;
  }

  /** Retries: a QEMU that was silent for a moment must not end the filling. */
  async #runUntilDone(): Promise<void> {
    const { log, retry_ms = RETRY_MS } = this.#options;
    const { signal } = this.#stopping;
    for (let attempt = 0; !signal.aborted; attempt++) {
      try {
        return await this.#run();
      } catch (error) {
        this.#client?.destroy();
        this.#client = undefined;
        if (signal.aborted) return;
        log.warn({ reason: messageOf(error) }, 'filling the overlay failed; it is tried again');
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
    await this.#reportOrder(known);
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
    await this.#exclusively(async () => this.#client?.flush()).catch(async (error: unknown) => {
      if (error instanceof NbdError) await this.#options.syncFailed();
      throw error;
    });
    this.#whole = true;
  }

  /** At full speed: a guest waits for these. The filling repeats what fails. */
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

  /** The guest's reads of prefetched blocks do not pass here. So the new order is the known one, followed by the other first reads. */
  async #reportOrder(known: readonly number[]): Promise<void> {
    const { lazy, reportOrder, log } = this.#options;
    const blocks = [...new Set([...known, ...lazy.takeFirstReads()])].slice(0, BOOT_ORDER_MAX);
    if (blocks.length === known.length) return;
    await reportOrder(blocks).catch((error: unknown) =>
      log.debug({ reason: messageOf(error) }, 'the boot order could not be reported'),
    );
  }

  /** All blocks of the map in the order to fetch them; zeroes, which need no fetch, last. The map may change meanwhile. */
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
        // Any other error means that the connection has ended.
        if (!(error instanceof NbdError) || signal.aborted) throw error;
        damaged ||= error instanceof DamagedError;
        failed.push(range);
      }
      // The guest's own reads count too, and have priority.
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
    try {
      await this.#exclusively(async () => this.#client?.cache(offset, length));
    } catch (error) {
      // QEMU read for this copy. If its guest reads the same damage, it meets it again.
      lazy.takeDamage();
      throw error;
    }
  }

  /** Waits while a flush is under way. */
  async #exclusively(work: () => Promise<void>): Promise<void> {
    const { signal } = this.#stopping;
    while (this.#pauses > 0 && !signal.aborted) await this.#changed.wait({ signal });
    signal.throwIfAborted();
    this.#copies += 1;
    try {
      await work();
    } finally {
      this.#copies -= 1;
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
