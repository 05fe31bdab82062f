/**
 * Connections for the job library. It writes the end of a job without waiting for it, and tries that again for some
 * SQLSTATEs only: any other failure would be a rejection that nobody handles, which ends the process. So a database that
 * cannot be reached is told to it as one that "cannot connect now", which it does try again; and once the pool has ended,
 * whoever still asks waits for ever: a job whose end was not written is one more hint, and hints are harmless. A
 * connection without an answer for too long is ended: the library would take it again, and wait again.
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

/** Whose queries fail as the library understands it, and no more once `isOver`. */
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

  /** Of up to `max` connections; idle ones that break are replaced. `unheard_ms`: an answer takes no longer (absent: it may). */
  constructor(url: string, max: number, unheard_ms = 0) {
    const Client = clientsUntil(() => this.#over);
    super({
      ...KEEP_ALIVE,
      connectionString: url,
      max,
      connectionTimeoutMillis: 5_000,
      query_timeout: unheard_ms,
      Client,
    });
    // The pool listens to idle connections only.
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

  /** Gives it back once: the library does so twice with a listening one that breaks while it stops, and the pool throws. */
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

  /** Ends what is lent too: a library that was not waited for any longer still has its listening connection. */
  override async end(): Promise<void> {
    this.#over = true;
    for (const giveBack of this.#lent) giveBack(true);
    await super.end();
  }
}
