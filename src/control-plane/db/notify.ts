/**
 * Wakes waiters in all processes by PostgreSQL's NOTIFY and LISTEN, on one channel. `notify` sends; `NotifyHub`
 * listens, with one connection for each process.
 *
 * A notification is only a hint that a row has changed: the waiter reads the row again. Hints are lost while the
 * connection is down, so each reconnection wakes all waiters. The hub probes the connection every few seconds, because
 * an idle connection shows no failure.
 */
import { randomUUID } from 'node:crypto';
import { EventEmitter, once } from 'node:events';
import { sql } from 'kysely';
import type pg from 'pg';
import type { Log } from '../../shared/log.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import { connect } from './connect.ts';
import type { Tx } from './pool.ts';

const CHANNEL = 'berth';
const ASK_MS = { every: 5_000, answer: 3_000 };

/** The subject of a notification; its id follows. */
export type Topic =
  | 'host'
  | 'instance'
  | 'flush'
  | 'exec'
  | 'routes'
  | 'deleting'
  | 'moving'
  | 'events'
  | 'notifications'
  | 'mail'
  | 'webhook'
  | 'calls'
  | 'mark';

/** When the transaction commits, wakes every waiter for `topic` and `id`, in every process. */
export async function notify(tx: Tx, topic: Topic, id = ''): Promise<void> {
  await notifyAll(tx, topic, [id]);
}

/** As {@link notify} for each of `ids`. */
export async function notifyAll(tx: Tx, topic: Topic, ids: readonly string[]): Promise<void> {
  if (ids.length === 0) return;
  await sql`select pg_notify(${CHANNEL}, ${`${topic}:`} || id) from unnest(${[...ids]}::text[]) as id`.execute(
    tx,
  );
}

export class NotifyHub {
  readonly #emitter = new EventEmitter().setMaxListeners(0);
  readonly #stopped = new AbortController();
  readonly #url: string;
  readonly #log: Log;
  readonly #ask_ms: typeof ASK_MS;
  readonly #waits = new Set<Promise<unknown>>();
  /** Reads that are about to begin. */
  readonly #reads = new Map<string, Promise<unknown>>();
  #client: pg.Client | undefined;
  #loop: Promise<void> = Promise.resolve();

  /** Probes the connection every `ask_ms.every` and reconnects if there is no answer within `ask_ms.answer`. */
  constructor(url: string, log: Log, ask_ms = ASK_MS) {
    this.#url = url;
    this.#log = log;
    this.#ask_ms = ask_ms;
  }

  start(): void {
    this.#loop = this.#run();
  }

  /** Ends all waits. None of them uses the database afterwards, also where the caller has disconnected and no connection waits. */
  async stop(): Promise<void> {
    this.#stopped.abort();
    await this.#client?.end().catch(() => undefined);
    await this.#loop;
    await Promise.allSettled(this.#waits);
  }

  /**
   * Calls `wake` at each notification of `topic` and `id` (null: any), and after each reconnection. Returns the function that
   * unsubscribes.
   */
  subscribe(topic: Topic, id: string | null, wake: () => void): () => void {
    const name = id === null ? `every ${topic}` : `${topic}:${id}`;
    this.#emitter.on(name, wake);
    this.#emitter.on('reconnected', wake);
    return () => {
      this.#emitter.off(name, wake);
      this.#emitter.off('reconnected', wake);
    };
  }

  /** Calls `hear` with the id of each notification of `topic`, and `missed` when some may have been lost with a connection. */
  listen(topic: Topic, hear: (id: string) => void, missed: () => void = () => undefined): void {
    this.#emitter.on(`every ${topic}`, hear);
    this.#emitter.on('reconnected', missed);
  }

  /** Resolves when every notification is heard that was sent before this call; to false if that takes longer than `timeout_ms`. */
  async caughtUp(tx: Tx, timeout_ms: number): Promise<boolean> {
    const id = randomUUID();
    const heard = once(this.#emitter, `mark:${id}`, { signal: AbortSignal.timeout(timeout_ms) });
    const either = heard.then(
      () => true,
      () => false,
    );
    await notify(tx, 'mark', id);
    return either;
  }

  /**
   * Calls `look` at the start, after each notification, and at the deadline. Returns its first result that is not
   * undefined, or undefined after `timeout_ms` or when `signal` aborts.
   */
  async waitFor<T>(
    topic: Topic,
    id: string | null,
    timeout_ms: number,
    look: () => Promise<T | undefined>,
    signal: AbortSignal,
  ): Promise<T | undefined> {
    const ended = AbortSignal.any([AbortSignal.timeout(timeout_ms), this.#stopped.signal, signal]);
    const wait = this.#wait(topic, id, look, ended);
    this.#waits.add(wait);
    try {
      return await wait;
    } finally {
      this.#waits.delete(wait);
    }
  }

  /**
   * For `look`: all that a notification has woken share one read, by its name. Otherwise the waits of one caller for an instance that
   * changes often would keep everybody else from the database. It begins once they all have asked, so it sees what they have heard of.
   */
  shared<T>(name: string, read: () => Promise<T>): Promise<T> {
    const coming = this.#reads.get(name);
    if (coming) return coming as Promise<T>;
    const reading = new Promise((begin) => setImmediate(begin)).then(() => {
      this.#reads.delete(name);
      return read();
    });
    this.#reads.set(name, reading);
    return reading;
  }

  async #wait<T>(
    topic: Topic,
    id: string | null,
    look: () => Promise<T | undefined>,
    ended: AbortSignal,
  ): Promise<T | undefined> {
    let woken = false;
    let wake = () => {
      woken = true;
    };
    const unsubscribe = this.subscribe(topic, id, () => wake());
    try {
      for (;;) {
        woken = false;
        const found = await look();
        if (found !== undefined) return found;
        if (ended.aborted) return undefined;
        if (woken) continue;
        await new Promise<void>((resolve) => {
          const done = () => {
            ended.removeEventListener('abort', done);
            wake = () => {
              woken = true;
            };
            resolve();
          };
          wake = done;
          ended.addEventListener('abort', done, { once: true });
        });
      }
    } finally {
      unsubscribe();
    }
  }

  async #run(): Promise<void> {
    for (let attempt = 0; !this.#stopped.signal.aborted; attempt++) {
      let client: pg.Client | undefined;
      let asking: NodeJS.Timeout | undefined;
      try {
        const connected = await connect(this.#url, {
          statement_timeout_ms: 0,
          query_timeout_ms: this.#ask_ms.answer,
        });
        client = connected;
        this.#client = connected;
        connected.on('notification', ({ payload = '' }) => {
          const [topic = '', id = ''] = payload.split(':', 2);
          this.#emitter.emit(payload);
          this.#emitter.emit(`every ${topic}`, id);
        });
        await connected.query(`listen ${CHANNEL}`);
        attempt = 0;
        this.#emitter.emit('reconnected');
        asking = setInterval(() => {
          connected.query('select 1').catch((error: unknown) => {
            if (this.#client !== connected || this.#stopped.signal.aborted) return;
            this.#log.warn({ err: error }, 'notifications: no answer, connecting anew');
            connected.end().catch(() => undefined);
          });
        }, this.#ask_ms.every);
        await once(connected, 'end', { signal: this.#stopped.signal });
      } catch (error) {
        if (!this.#stopped.signal.aborted) this.#log.warn({ err: error }, 'notifications: connection lost');
      }
      clearInterval(asking);
      this.#client = undefined;
      await client?.end().catch(() => undefined);
      await pause(backoffMs(attempt, 100, 3_000), this.#stopped.signal);
    }
  }
}
