/**
 * An overlay that is not whole yet: our NBD export below it, which its QEMU reads from, and the filling beside it.
 *
 *   open ──▶ (QEMU starts or is adopted) ──▶ fill ──▶ detached: QEMU reads the image itself, nothing of this is left
 *
 * Invariants:
 * - the export is there before its QEMU is spoken to: QEMU may stand still until a read is answered;
 * - while we are gone QEMU holds its reads and asks again (`reconnect-delay`); the guest sees no error;
 * - the filling rests while a flush is under way, and a flush is not begun while reads wait: QEMU waits for reads
 *   under way before it takes a point in time, and its guest with it.
 */
import { type FileHandle, open } from 'node:fs/promises';
import { join } from 'node:path';
import type { SegmentCorruptError } from '../../disk-format/segment-format.ts';
import { LazyDisk } from '../block/lazy-disk.ts';
import { NbdServer } from '../block/nbd-server.ts';
import type { HostContext } from '../host-context.ts';
import type { QmpClient } from '../qmp/qmp-client.ts';
import { type LazyBacking, NODES, overlayNode } from '../vm/qemu-command.ts';
import type { VmUser } from '../vm/uid.ts';
import { FencedError } from './commit-outcome.ts';
import type { DiskState, Placement } from './disk-state.ts';
import { OverlayFill } from './fill-overlay.ts';
import type { OverlayExport } from './overlay-export.ts';

const EXPORT = 'lazy';
/** QEMU's one, and the one it makes while the last is still being closed: bounds what a rogue QEMU can make us hold. */
const CONNECTIONS = 2;
/** QEMU gives a read up after this; an agent that is away for longer has left its VMs standing for a day. */
const RECONNECT_DELAY_SECONDS = 86_400;
/** Reads that a flush, or its end, waits for; longer, and the flush fails rather than the guest standing still. */
const FLUSH_PATIENCE_MS = 5_000;

export interface LazyOverlayOptions {
  readonly context: HostContext;
  /** Of the VM's sockets. */
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
  readonly placement: Placement;
  /** The VM's record and the overlay's sidecar are told, in this order, before QEMU and after. */
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

  /** Serves at once; what it serves is loaded at the first read. */
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

  /** The damage that made a read fail, if any did. */
  get corrupt(): SegmentCorruptError | null {
    return this.#disk.corrupt;
  }

  /** Begins with what the last boot read first; the rest follows once the guest has booted. */
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
      sayOrder: async (blocks) => {
        const { epoch } = placement;
        await context.client.bootOrder({ instance_id: disk.instance_id, epoch, blocks });
      },
      filled: async () => {
        // The sidecar first: it holds as soon as the data is on the disk, whatever QEMU has open below.
        disk.setFilled('yes');
        await disk.markDirty(placement);
        await qmp.execute('blockdev-reopen', { options: [overlayNode(NODES.base)] });
        // Gone already when an agent before us died right here.
        await qmp.execute('blockdev-del', { 'node-name': NODES.lazy }).catch(() => undefined);
        await detached();
        const { requests, bytes } = context.runs.fetched;
        const fetched = { requests: requests - before.requests, bytes: bytes - before.bytes };
        context.log.info({ fetched }, 'the overlay is whole');
        const { served_bytes } = this.#disk;
        if (unverified && served_bytes > 0)
          context.log.warn(
            { served_bytes },
            'the overlay of a killed VM lacked blocks of the head; the head has them',
          );
      },
    });
    this.#fill.start();
  }

  /** It is being filled, or rests. */
  get filling(): boolean {
    return this.#fill !== undefined;
  }

  /** The guest is up: the rest of the disk may follow. */
  booted(): void {
    this.#fill?.booted();
  }

  /** Runs a flush with the filling at rest. @throws why reads wait, when they do; the signal's reason, before it has begun */
  async duringFlush<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T> {
    const { corrupt } = this.#disk;
    let why: unknown;
    const impatience = setInterval(() => {
      const { stalled } = this.#disk;
      if (!stalled) return;
      why = stalled.cause;
      this.#disk.refuse(FLUSH_PATIENCE_MS);
    }, 500);
    let rest: (() => void) | undefined;
    try {
      rest = await this.#fill?.rest(signal);
      const { stalled } = this.#disk;
      if (stalled) throw stalled.cause;
      return await work();
    } catch (error) {
      if (error instanceof FencedError) throw error;
      // QEMU only says that a read failed.
      if (this.#disk.corrupt !== corrupt) throw this.#disk.corrupt;
      throw why ?? error;
    } finally {
      clearInterval(impatience);
      rest?.();
    }
  }

  /** Nothing is copied any more, until it is to be filled again; reads are served on. */
  async stopFilling(): Promise<void> {
    await this.#fill?.stop();
    this.#fill = undefined;
  }

  /** Reads that wait fail now, which pauses the guest; it goes on with `cont`. */
  refuseReads(): void {
    this.#disk.refuse();
  }

  /** Before the end of its QEMU: nothing waits any more, nothing is filled. */
  async refuseAll(): Promise<void> {
    this.#disk.close();
    await this.#fill?.stop();
  }

  /** Lets go. A QEMU that still reads asks again, of whoever listens next. */
  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    // Cut before anything is refused: what is not answered is asked again.
    const cut = this.#server.cut();
    this.#disk.close();
    await Promise.all([cut, this.#fill?.stop()]);
    await this.#base.close();
  }
}
