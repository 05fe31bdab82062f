/** A proxy in front of a database that a test can cut and restore: a unix socket that forwards bytes to the server's socket. */
import { mkdtemp, rm } from 'node:fs/promises';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestDatabase } from './database.ts';

/** libpq's name of a socket: `.s.PGSQL.` and the port. */
const SOCKET = '.s.PGSQL.5432';
/** The message Terminate of a client. https://www.postgresql.org/docs/current/protocol-message-formats.html */
const TERMINATE = Buffer.from('X\0\0\0\x04', 'latin1');

export class CuttableWay {
  readonly url: string;
  readonly #folder: string;
  readonly #target: string;
  readonly #sockets = new Set<Socket>();
  #server: Server | undefined;
  /** Sent to a client that disconnects, like the message of a server that shuts down at that moment. */
  last_word: Buffer | undefined;

  private constructor(folder: string, database: TestDatabase) {
    this.#folder = folder;
    this.#target = join(database.socket_dir, SOCKET);
    const url = new URL(database.url);
    url.searchParams.set('host', folder);
    this.url = url.href;
  }

  static async open(database: TestDatabase): Promise<CuttableWay> {
    const way = new CuttableWay(await mkdtemp(join(tmpdir(), 'berth-way-')), database);
    await way.mend();
    return way;
  }

  async mend(): Promise<void> {
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
      inbound.on('data', (bytes) => {
        if (this.last_word && bytes.subarray(-TERMINATE.length).equals(TERMINATE))
          inbound.write(this.last_word);
      });
      inbound.pipe(outbound).pipe(inbound);
    });
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject).listen(join(this.#folder, SOCKET), resolve);
    });
    this.#server = server;
  }

  /** Closes both sides of every connection. */
  get open_connections(): number {
    return this.#sockets.size;
  }

  /** Stops forwarding on the open connections, without closing them. New connections work. */
  silence(): void {
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
