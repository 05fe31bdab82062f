/**
 * QEMU's own read-only NBD export of a VM's overlay, for this agent alone. The filling copies through it, and a flush syncs the
 * overlay through it. QEMU's NBD server starts at the first use and ends with QEMU.
 */
import { chmod } from 'node:fs/promises';
import { dirname } from 'node:path';
import { NbdClient } from '../block/nbd-client.ts';
import type { QmpClient } from '../qmp/qmp-client.ts';
import { NODES } from '../vm/qemu-command.ts';
import { prepareRuntimeDir, takeRuntimeDir, type VmUser } from '../vm/uid.ts';

const EXPORT = 'overlay';
/** The filling's and a flush's, and one of each that is being closed. */
const CONNECTIONS = 4;

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
    return NbdClient.connect({ path: this.#options.socket_path, export_name: EXPORT, signal });
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
      'max-connections': CONNECTIONS,
    });
    if (owner) takeRuntimeDir(dirname(path), owner.uid, [path]);
    else await chmod(path, 0o600);
    await qmp.execute('block-export-add', {
      type: 'nbd',
      id: EXPORT,
      'node-name': NODES.overlay,
      name: EXPORT,
      writable: false,
    });
  }
}
