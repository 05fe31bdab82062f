/**
 * An NBD server on a unix socket, serving exports by name. Fixed newstyle handshake, simple replies.
 *
 * Invariants: a misbehaving peer ends only its own connection. Connections are limited in number and memory. Exports can be
 * added and removed at any time. After `close` or `removeExport` the exports are not called.
 */
import { chmod, chown, lstat, unlink } from 'node:fs/promises';
import { createServer, type Server, type Socket } from 'node:net';
import { assert } from '../../shared/assert.ts';
import type { Log } from '../../shared/log.ts';
import { NbdConnection } from './nbd-connection.ts';
import type { NbdExport } from './nbd-export.ts';
import { NBD_MAX_NAME_BYTES } from './nbd-protocol.ts';

export interface NbdServerOptions {
  /** Path of the socket. A socket left by a dead process is replaced. */
  readonly path: string;
  /** Permissions of the socket file, 0o600 by default. Connecting needs the write bit. */
  readonly mode?: number;
  /** Owner of the socket file: both or none. */
  readonly uid?: number;
  readonly gid?: number;
  /** Maximum connections; further ones are closed at once. 64 by default. */
  readonly max_connections?: number;
  readonly log?: Log;
}

export class NbdServer {
  readonly path: string;
  readonly #server: Server;
  readonly #exports = new Map<string, NbdExport>();
  readonly #connections = new Set<NbdConnection>();
  readonly #maxConnections: number;
  readonly #log: Log | undefined;
  #closed: Promise<void> | undefined;

  private constructor({ path, max_connections = 64, log }: NbdServerOptions) {
    this.path = path;
    this.#maxConnections = max_connections;
    this.#log = log;
    this.#server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (socket) =>
      this.#accept(socket),
    );
  }

  /** Listens, without exports. Rejects with the system error. */
  static async listen(options: NbdServerOptions): Promise<NbdServer> {
    const { path, mode = 0o600, uid, gid } = options;
    const server = new NbdServer(options);
    await removeStaleSocket(path);
    await new Promise<void>((resolve, reject) => {
      server.#server.once('error', reject);
      server.#server.listen(path, () => {
        server.#server.off('error', reject);
        resolve();
      });
    });
    server.#server.on('error', (error) => options.log?.error({ error: error.message }, 'nbd server'));
    try {
      if (uid !== undefined && gid !== undefined) await chown(path, uid, gid);
      await chmod(path, mode);
    } catch (error) {
      await server.close();
      throw error;
    }
    return server;
  }

  addExport(name: string, disk: NbdExport): void {
    assert(!this.#exports.has(name), `export ${name} is not there yet`);
    assert(Buffer.byteLength(name) <= NBD_MAX_NAME_BYTES, 'an export name is at most 4,096 bytes');
    const { min_block_bytes: min, size_bytes } = disk;
    assert(
      min >= 1 && min <= 65_536 && (min & (min - 1)) === 0,
      'a block size is a power of two up to 64 KiB',
    );
    assert(size_bytes % min === 0, 'an export has whole blocks');
    this.#exports.set(name, disk);
  }

  /** Removes an export and drains its connections. Resolves when no request of it is in flight. */
  async removeExport(name: string): Promise<void> {
    this.#exports.delete(name);
    const concerned = [...this.#connections].filter((connection) => connection.export_name === name);
    for (const connection of concerned) connection.drain();
    await Promise.all(concerned.map((connection) => connection.done));
  }

  /**
   * Stops listening, finishes requests in flight, then closes. Cuts connections that are not done after `drain_ms`. A second
   * call waits for the same end.
   */
  close(drain_ms = 5_000): Promise<void> {
    this.#closed ??= this.#close(drain_ms);
    return this.#closed;
  }

  /**
   * Stops listening and breaks all connections without replies: clients reconnect and repeat their requests. The exports'
   * owner must end their pending work.
   */
  cut(): Promise<void> {
    for (const connection of this.#connections) connection.destroy();
    return this.close(0);
  }

  async #close(drain_ms: number): Promise<void> {
    const stopped = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    for (const connection of this.#connections) connection.drain();
    const cut = setTimeout(() => {
      for (const connection of this.#connections) connection.destroy();
    }, drain_ms);
    await Promise.all([...this.#connections].map((connection) => connection.done));
    clearTimeout(cut);
    await stopped;
  }

  #accept(socket: Socket): void {
    if (this.#closed || this.#connections.size >= this.#maxConnections) {
      socket.destroy();
      return;
    }
    const connection = new NbdConnection(socket, this.#exports, this.#log);
    this.#connections.add(connection);
    void connection.done.finally(() => this.#connections.delete(connection));
  }
}

async function removeStaleSocket(path: string): Promise<void> {
  const found = await lstat(path).catch(() => undefined);
  if (found?.isSocket()) await unlink(path);
}
