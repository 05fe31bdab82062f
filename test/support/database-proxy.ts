/**
 * A proxy in front of a database server, which a test can cut, stall, silence and restore. It listens on a unix socket
 * or on a loopback port, and forwards to the server's socket.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestDatabase } from './database.ts';

/** libpq's name of a socket: `.s.PGSQL.` and the port. */
const SOCKET = '.s.PGSQL.5432';

export class DatabaseProxy {
  readonly url: string;
  readonly #folder: string;
  readonly #port: number | undefined;
  readonly #target: string;
  readonly #sockets = new Set<Socket>();
  #server: Server | undefined;
  #silent = false;

  private constructor(folder: string, database: TestDatabase, port: number | undefined) {
    this.#folder = folder;
    this.#port = port;
    this.#target = join(database.socket_dir, SOCKET);
    const url = new URL(database.url);
    if (port === undefined) {
      url.searchParams.set('host', folder);
    } else {
      url.searchParams.delete('host');
      url.host = `127.0.0.1:${port}`;
    }
    this.url = url.href;
  }

  static async open(database: TestDatabase, port?: number): Promise<DatabaseProxy> {
    const proxy = new DatabaseProxy(await mkdtemp(join(tmpdir(), 'berth-proxy-')), database, port);
    await proxy.restore();
    return proxy;
  }

  /** Listens (again). */
  async restore(): Promise<void> {
    this.#silent = false;
    const server = createServer((inbound) => {
      if (this.#silent) {
        this.#sockets.add(inbound.on('error', () => undefined));
        return;
      }
      const outbound = connect(this.#target);
      for (const [from, to] of [
        [inbound, outbound],
        [outbound, inbound],
      ] as const) {
        this.#sockets.add(from);
        from.on('error', () => from.destroy());
        from.once('close', () => {
          this.#sockets.delete(from);
          to.destroy();
        });
      }
      inbound.pipe(outbound).pipe(inbound);
    });
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      if (this.#port === undefined) server.listen(join(this.#folder, SOCKET), resolve);
      else server.listen(this.#port, '127.0.0.1', resolve);
    });
    this.#server = server;
  }

  /** Stops forwarding on the open connections, without closing them. New connections work. */
  stall(): void {
    for (const socket of this.#sockets) socket.unpipe().pause();
  }

  /** Like a server that is stopped, or cut off: nothing is forwarded, on new connections neither. */
  silence(): void {
    this.#silent = true;
    this.stall();
  }

  /** Breaks every connection and accepts no new one. */
  async cut(): Promise<void> {
    const server = this.#server;
    this.#server = undefined;
    if (!server) return;
    const closed = new Promise((resolve) => server.close(resolve));
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  async close(): Promise<void> {
    await this.cut();
    await rm(this.#folder, { recursive: true, force: true });
  }
}
