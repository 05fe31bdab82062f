/** A proxy in front of a database, which a test can cut, stall and restore: a unix socket that forwards to the server's socket. */
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
  readonly #target: string;
  readonly #sockets = new Set<Socket>();
  #server: Server | undefined;

  private constructor(folder: string, database: TestDatabase) {
    this.#folder = folder;
    this.#target = join(database.socket_dir, SOCKET);
    const url = new URL(database.url);
    url.searchParams.set('host', folder);
    this.url = url.href;
  }

  static async open(database: TestDatabase): Promise<DatabaseProxy> {
    const proxy = new DatabaseProxy(await mkdtemp(join(tmpdir(), 'berth-proxy-')), database);
    await proxy.restore();
    return proxy;
  }

  /** Listens (again). */
  async restore(): Promise<void> {
    const server = createServer((inbound) => {
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
      server.once('error', reject).listen(join(this.#folder, SOCKET), resolve);
    });
    this.#server = server;
  }

  /** Stops forwarding on the open connections, without closing them. New connections work. */
  stall(): void {
    for (const socket of this.#sockets) socket.unpipe().pause();
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
