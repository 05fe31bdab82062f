/**
 * An overlay that is not whole yet: our NBD export below it, from which its QEMU reads, and the filling beside it.
 *
 *   open ──▶ (QEMU starts or is adopted) ──▶ fill ──▶ detached: QEMU reads the image itself, and the export is closed
 *
 * Invariants:
 * - the export is served before its QEMU is spoken to: QEMU may block until a read is answered;
 * - while the agent is away QEMU holds its reads and reconnects (`reconnect-delay`); the guest sees no error;
 * - the filling pauses during a flush, and no flush begins while reads wait: QEMU drains its reads before it takes a point in
 *   time, and its guest is paused until then.
 */
import { chmod, type FileHandle, open } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { SegmentCorruptError } from '../../disk-format/segment-format.ts';
import type { HostContext } from '../host-context.ts';
import { NODES, overlayNode } from '../qemu/qemu-command.ts';
import type { QmpClient } from '../qemu/qmp-client.ts';
import { prepareRuntimeDir, takeRuntimeDir, type VmUser } from '../qemu/uid.ts';
import type { LazyBacking } from '../qemu/vm-spec.ts';
import { type DiskState, FencedError, type Placement } from './disk-state.ts';
import { OverlayFill } from './fill-overlay.ts';
import { LazyDisk } from './lazy-disk.ts';
import { NbdClient } from './nbd-client.ts';
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
  readonly placement: Placement;
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

/**
 * QEMU's own read-only NBD export of a VM's overlay, for this agent alone. The filling copies through it, and a flush syncs the
 * overlay through it. QEMU's NBD server starts at the first use and ends with QEMU.
 */

const OVERLAY_EXPORT = 'overlay';
/** The filling's and a flush's, and one of each that is being closed. */
const OVERLAY_CONNECTIONS = 4;

export interface OverlayExportOptions {
  readonly qmp: QmpClient;
  readonly socket_path: string;
  /** QEMU's user, who owns the socket's folder while QEMU creates the socket; null: our own user. */
  readonly owner: VmUser | null;
}

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
