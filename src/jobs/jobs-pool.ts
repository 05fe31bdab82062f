/**
 * Connections for graphile-worker. The library writes the end of a job without awaiting it and retries only some
 * SQLSTATEs; any other failure is an unhandled rejection, which ends the process. So every error of an unavailable
 * database is reported as "cannot connect now", which it retries. After the pool has ended, queries never settle: a job
 * whose end was not written runs again, and jobs are idempotent. A connection that does not answer is closed, because
 * the library would reuse it.
 */
import pg from 'pg';
import { isNoAnswer, isUnavailable, KEEP_ALIVE } from '../db/pool.ts';

const CANNOT_CONNECT_NOW = '57P03';

function never(): Promise<never> {
  return new Promise(() => undefined);
}

function translated(error: unknown): unknown {
  if (!(error instanceof Error) || !isUnavailable(error)) return error;
  return Object.assign(new Error(error.message, { cause: error }), { code: CANNOT_CONNECT_NOW });
}

/** Clients whose errors the library retries; once `isOver`, their queries never settle. */
function clientsUntil(isOver: () => boolean): typeof pg.Client {
  return class extends pg.Client {
    override query(...given: unknown[]): never {
      const query = super.query as (...args: unknown[]) => unknown;
      const answer = query.apply(this, given);
      if (!(answer instanceof Promise)) return answer as never;
      return answer.catch((error: unknown) => {
        if (isNoAnswer(error)) this.end().catch(() => undefined);
        if (isOver()) return never();
        throw translated(error);
      }) as never;
    }
  };
}

type Connected = (error: Error | undefined, client: pg.PoolClient | undefined, release?: Release) => void;
type Release = (release?: Error | boolean) => void;

export class JobsPool extends pg.Pool {
  #over = false;
  readonly #lent = new Set<Release>();

  /** Up to `max` connections; broken idle ones are replaced. `no_answer_ms` bounds each query; 0: no bound. */
  constructor(url: string, max: number, no_answer_ms = 0) {
    const Client = clientsUntil(() => this.#over);
    super({
      ...KEEP_ALIVE,
      connectionString: url,
      max,
      connectionTimeoutMillis: 5_000,
      query_timeout: no_answer_ms,
      Client,
    });
    // The pool listens only to idle connections.
    this.on('connect', (client) => client.on('error', () => undefined));
    this.on('error', () => undefined);
  }

  override connect(): Promise<pg.PoolClient>;
  override connect(callback: Connected): void;
  override connect(callback?: Connected): Promise<pg.PoolClient> | undefined {
    if (callback) {
      super.connect((error, client) => {
        if (client) this.#lend(client);
        callback(error, client, client?.release);
      });
      return undefined;
    }
    if (this.#over) return never();
    return super.connect().then(
      (client) => this.#lend(client),
      (error: unknown) => {
        if (this.#over) return never();
        throw translated(error);
      },
    );
  }

  /** Releases a client at most once: the library releases its listening client twice if it breaks during a stop, and the pool would throw. */
  #lend(client: pg.PoolClient): pg.PoolClient {
    const release = client.release.bind(client);
    const giveBack: Release = (error) => {
      if (this.#lent.delete(giveBack)) release(error);
    };
    this.#lent.add(giveBack);
    client.release = giveBack;
    if (this.#over) giveBack(true);
    return client;
  }

  /** Also closes connections in use: a library that was abandoned still holds its listening connection. */
  override async end(): Promise<void> {
    this.#over = true;
    for (const giveBack of this.#lent) giveBack(true);
    await super.end();
  }
}
