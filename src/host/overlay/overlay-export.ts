/**
 * QEMU's own read-only export of a VM's overlay, for ourselves alone: the filling copies by it, and a flush has QEMU put
 * the overlay on the host's disk. QEMU's NBD server is started at the first use and ends with QEMU.
 */
import { chmod } from 'node:fs/promises';
import { dirname } from 'node:path';
import { NbdClient } from '../block/nbd-client.ts';
import type { QmpClient } from '../qmp/qmp-client.ts';
import { NODES } from '../vm/qemu-command.ts';
import { prepareRuntimeDir, takeRuntimeDir, type VmUser } from '../vm/uid.ts';

const EXPORT = 'overlay';
/** The filling's, a flush's, and one of each that is being closed. */
const CONNECTIONS = 4;

export interface OverlayExportOptions {
  readonly qmp: QmpClient;
  readonly socket_path: string;
  /** QEMU's user, to whom the socket's folder, for that alone, belongs while QEMU makes it; null: ourselves. */
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

  /**
   * Has QEMU write what it holds of the overlay in memory, its tables above all, and sync the file.
   * @throws NbdError where the host's disk did not take it; the signal's reason
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
    // An agent before us may have left its own.
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
