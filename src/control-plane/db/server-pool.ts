/**
 * Keeps a pool of connections to the PostgreSQL server that takes writes. After a failover it closes this pool, and
 * opens one to the new server.
 *
 *     none ─ a connection is wanted: search ─▶ serving ─ a statement fails or is slow: search again ─▶ serving
 *      ▲                                          │ another server takes writes, or none answers
 *      └──── all its connections are broken ◀─────┘
 *
 * A server that was stopped or cut off delays its callers by {@link SLOW_STATEMENT_MS} and at most `CONNECT_MS`. A server
 * that is only slow answers the search, so its connections stay.
 */
import { Socket } from 'node:net';
import pg from 'pg';
import { connectionOptions, findServer, identify, NoServerError, type Server } from './connect.ts';

/** A statement without an answer for so long raises the question whether its server still serves. */
const SLOW_STATEMENT_MS = 3_000;

interface Serving extends Server {
  readonly pool: pg.Pool;
  readonly sockets: Set<Socket>;
  checking: boolean;
}

/** States after which a connection serves nobody: it is lost, its server stops, or is a standby now. */
const BROKEN = /^(08|25006|57P)/;

export class ServerPool {
  readonly #url: string;
  readonly #max: number;
  readonly #onError: (error: Error) => void;
  readonly #broken = new WeakSet<pg.PoolClient>();
  readonly #servers = new WeakMap<pg.PoolClient, Serving>();
  #search: Promise<Serving> | undefined;
  #serving: Serving | undefined;
  #ended = false;

  /** `onError` gets errors of idle connections and must not throw. */
  constructor(url: string, max: number, onError: (error: Error) => void) {
    this.#url = url;
    this.#max = max;
    this.#onError = onError;
  }

  async connect(): Promise<pg.PoolClient> {
    if (this.#ended) throw new Error('the pool of connections was ended');
    const serving = this.#serving ?? (await this.#find());
    try {
      const client = await serving.pool.connect();
      this.#servers.set(client, serving);
      return client;
    } catch (error) {
      void this.#check(serving);
      throw error;
    }
  }

  async query(client: pg.PoolClient, statement: pg.QueryConfig): Promise<pg.QueryResult> {
    const serving = this.#servers.get(client);
    const slow = setInterval(() => void this.#check(serving), SLOW_STATEMENT_MS);
    try {
      return await client.query(statement);
    } catch (error) {
      if (!(error instanceof pg.DatabaseError) || BROKEN.test(error.code ?? '')) {
        this.#broken.add(client);
        void this.#check(serving);
      }
      throw error;
    } finally {
      clearInterval(slow);
    }
  }

  release(client: pg.PoolClient, destroy = false): void {
    client.release(destroy || this.#broken.has(client));
  }

  counts(): Record<'used' | 'idle' | 'waiting', number> {
    const { totalCount = 0, idleCount = 0, waitingCount = 0 } = this.#serving?.pool ?? {};
    return { used: totalCount - idleCount, idle: idleCount, waiting: waitingCount };
  }

  async end(): Promise<void> {
    this.#ended = true;
    await this.#search?.catch(() => undefined);
    await this.#serving?.pool.end();
  }

  /** All callers share one search. */
  #find(): Promise<Serving> {
    this.#search ??= findServer(this.#url)
      .then((server) => {
        this.#serving = this.#open(server);
        return this.#serving;
      })
      .finally(() => {
        this.#search = undefined;
      });
    return this.#search;
  }

  #open(server: Server): Serving {
    const sockets = new Set<Socket>();
    const pool = new pg.Pool({
      ...connectionOptions(server.url),
      max: this.#max,
      pipeline: true,
      stream: () => keptIn(sockets),
      onConnect: async (client: pg.ClientBase) => {
        if ((await identify(client)) !== server.identity)
          throw new NoServerError('the database server has changed');
      },
    });
    const serving: Serving = { ...server, pool, sockets, checking: false };
    // The pool listens only to idle connections; one that breaks while in use must not end the process.
    pool.on('connect', (client) => client.on('error', () => undefined));
    pool.on('error', (error) => {
      this.#onError(error);
      void this.#check(serving);
    });
    return serving;
  }

  /** Breaks all connections to a server that does not answer, or is no longer the one that takes writes. */
  async #check(serving: Serving | undefined): Promise<void> {
    if (serving === undefined || serving.checking || serving !== this.#serving || this.#ended) return;
    serving.checking = true;
    const still = await findServer(this.#url).then(
      ({ identity }) => identity === serving.identity,
      // It answers, but takes no more connections.
      (error: unknown) => error instanceof pg.DatabaseError && error.code?.startsWith('53') === true,
    );
    serving.checking = false;
    if (still || serving !== this.#serving) return;
    if (!this.#ended) this.#serving = undefined;
    serving.pool.end().catch(() => undefined);
    for (const socket of serving.sockets) socket.destroy();
  }
}

function keptIn(sockets: Set<Socket>): Socket {
  const socket = new Socket();
  sockets.add(socket);
  return socket.once('close', () => sockets.delete(socket));
}
