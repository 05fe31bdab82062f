/**
 * Server-sent events (HTML Living Standard, section 9.2), read by `fetch` with an Authorization header.
 *
 * - A stream reads rows by a position, up to where no other can come any more, so one that goes on after `Last-Event-ID`
 *   misses none and repeats none. Where that event is not known any more, an event `reset` says that something may have been missed.
 * - Nothing is read while the reader does not take what it was sent: memory is one batch a stream. A reader that takes
 *   nothing for a minute is cut off.
 * - Its credential is looked at again before each batch and at each heartbeat; without it the stream ends.
 * - Streams are bounded for each organisation and for the process, and end at once when the server closes.
 */
import { Readable } from 'node:stream';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { Principal } from '../auth/principal.ts';
import type { NotifyHub, Topic } from '../db/notify.ts';
import type { Db } from '../db/pool.ts';
import { headPosition, positionOf } from '../events/read-store.ts';
import { AppError, invalid } from '../lib/errors.ts';
import { isId } from '../lib/ids.ts';
import type { QuotaLimits } from '../lib/quotas.ts';
import { streamLimit } from '../orgs/quotas.ts';
import { principalOf, reauthorise } from './access.ts';
import { hangUp } from './hang-up.ts';
import type { Places } from './places.ts';

const HEARTBEAT_MS = 15_000;
const STALLED_MS = 60_000;
const LAST_WORDS_MS = 500;
const BATCH = 100;
const BUFFER_BYTES = 64 * 1024;
/** After how long a reader whose stream broke tries again. */
const RETRY_MS = 2_000;

export interface StreamFrame {
  /** Where a stream goes on; absent: nothing that can be gone on from. */
  readonly id?: string;
  readonly event: string;
  readonly data: unknown;
}

export interface StreamSource {
  readonly topic: Topic;
  /** The topic's id, by who reads. */
  readonly wokenBy: (principal: Principal) => string;
  /** What came after `position`, oldest first, at most `limit`. */
  readonly read: (
    principal: Principal,
    position: number,
    limit: number,
  ) => Promise<readonly { readonly position: number; readonly frame: StreamFrame }[]>;
  /** Beside the rows: what the reader is to know after each look. */
  readonly state?: (principal: Principal) => Promise<StreamFrame>;
}

export interface StreamContext {
  readonly db: Db;
  readonly hub: NotifyHub;
  readonly quotas: QuotaLimits;
  readonly heartbeat_ms?: number;
}

export class EventStreams {
  readonly #context: StreamContext;
  readonly #closing = new AbortController();
  readonly #places: Places;

  constructor(app: FastifyInstance, context: StreamContext, places: Places) {
    this.#context = context;
    this.#places = places;
    app.addHook('preClose', async () => this.#closing.abort());
  }

  /** Answers with a stream of `source`. @throws AppError QUOTA_EXCEEDED, UNAVAILABLE, INVALID_REQUEST */
  async answer(request: FastifyRequest, reply: FastifyReply, source: StreamSource): Promise<FastifyReply> {
    const { db, quotas } = this.#context;
    const { org_id } = principalOf(request);
    const start = await startOf(db, request.headers['last-event-id']);
    const leave = this.#places.take(org_id, await streamLimit(db, quotas, org_id));
    const ended = hangUp(reply);
    const signal = AbortSignal.any([ended, this.#closing.signal]);
    this.#cutOff(reply, ended);
    const writer = new FrameWriter(signal);
    const pump = new Pump(this.#context, request, source, writer, signal);
    pump
      .run(start)
      .catch((error: unknown) => request.log.info({ err: error }, 'an event stream ended'))
      .finally(() => {
        leave();
        writer.end();
      });
    reply
      .header('content-type', 'text/event-stream')
      .header('cache-control', 'no-store')
      .header('x-accel-buffering', 'no')
      // So that a server that closes need not wait for an idle connection.
      .header('connection', 'close');
    return reply.send(writer.stream);
  }

  /** A server that closes does not wait for a reader that takes nothing. */
  #cutOff(reply: FastifyReply, ended: AbortSignal): void {
    const cut = () => {
      const timer = setTimeout(() => reply.raw.destroy(), LAST_WORDS_MS);
      ended.addEventListener('abort', () => clearTimeout(timer), { once: true });
    };
    this.#closing.signal.addEventListener('abort', cut, { once: true, signal: ended });
  }
}

interface Start {
  readonly position: number;
  /** What was asked for is not known any more. */
  readonly reset: boolean;
}

async function startOf(db: Db, header: string | string[] | undefined): Promise<Start> {
  if (header === undefined || header === '') return { position: await headPosition(db), reset: false };
  if (typeof header !== 'string' || !isId('evt', header)) {
    throw invalid('Last-Event-ID', 'must be the id of the last event that was received');
  }
  const position = await positionOf(db, header);
  return position === undefined
    ? { position: await headPosition(db), reset: true }
    : { position, reset: false };
}

/** One stream's life. */
class Pump {
  readonly #context: StreamContext;
  readonly #request: FastifyRequest;
  readonly #source: StreamSource;
  readonly #writer: FrameWriter;
  readonly #signal: AbortSignal;

  constructor(
    context: StreamContext,
    request: FastifyRequest,
    source: StreamSource,
    writer: FrameWriter,
    signal: AbortSignal,
  ) {
    this.#context = context;
    this.#request = request;
    this.#source = source;
    this.#writer = writer;
    this.#signal = signal;
  }

  async run(start: Start): Promise<void> {
    const { hub, heartbeat_ms = HEARTBEAT_MS } = this.#context;
    const writer = this.#writer;
    const wake = new WakeUp(heartbeat_ms, this.#signal);
    const principal = principalOf(this.#request);
    const unsubscribe = hub.subscribe(this.#source.topic, this.#source.wokenBy(principal), () => wake.now());
    try {
      await writer.write(`retry: ${RETRY_MS}\n\n`);
      if (start.reset) await writer.write(frameText({ event: 'reset', data: {} }));
      let { position } = start;
      let state = '';
      while (!this.#signal.aborted) {
        wake.reset();
        const reader = await this.#reader();
        if (reader === null) return;
        // Before the rows: a state that one of them has made is never told before it.
        const now = this.#source.state ? frameText(await this.#source.state(reader)) : '';
        const rows = await this.#source.read(reader, position, BATCH);
        for (const row of rows) {
          await writer.write(frameText(row.frame));
          position = row.position;
        }
        if (rows.length === BATCH) continue;
        if (now !== state) await writer.write(now);
        state = now;
        if ((await wake.wait()) === 'time') await writer.write(': heartbeat\n\n');
      }
    } finally {
      unsubscribe();
    }
  }

  /** As the credential is now; null once it is not good for this any more, and the stream has said so. */
  async #reader(): Promise<Principal | null> {
    try {
      const reader = await reauthorise(this.#context.db, this.#request);
      // A session without Berth-Org is in another organisation once it has left its first: that is another stream.
      if (reader.org_id === principalOf(this.#request).org_id) return reader;
      throw new AppError('FORBIDDEN', { message: 'You are not a member of the organisation any more.' });
    } catch (error) {
      if (!(error instanceof AppError)) throw error;
      const { code, message } = error;
      await this.#writer.write(frameText({ event: 'end', data: { code, message } }));
      return null;
    }
  }
}

/** JSON has no line break, so `data` is one line. */
function frameText({ id, event, data }: StreamFrame): string {
  return `${id === undefined ? '' : `id: ${id}\n`}event: ${event}\ndata: ${JSON.stringify(data)}\n\n`;
}

/** Text for a reader that may be slow: a write resolves when there is room for the next. */
class FrameWriter {
  readonly stream: Readable;
  readonly #signal: AbortSignal;
  #room: () => void = () => undefined;

  constructor(signal: AbortSignal) {
    this.#signal = signal;
    this.stream = new Readable({ highWaterMark: BUFFER_BYTES, read: () => this.#room() });
    // The reader went away: that is how streams end.
    this.stream.on('error', () => undefined);
  }

  async write(text: string): Promise<void> {
    this.#signal.throwIfAborted();
    if (this.stream.destroyed) throw new Error('the reader went away');
    if (this.stream.push(text)) return;
    const stalled = AbortSignal.timeout(STALLED_MS);
    const signal = AbortSignal.any([this.#signal, stalled]);
    await new Promise<void>((resolve) => {
      this.#room = resolve;
      signal.addEventListener('abort', () => resolve(), { once: true });
    });
    if (stalled.aborted) {
      this.stream.destroy();
      throw new Error('the reader takes nothing');
    }
  }

  end(): void {
    if (!this.stream.destroyed) this.stream.push(null);
  }
}

/** Sleeps until woken, until the time is over, or until the stream ends. */
class WakeUp {
  readonly #every_ms: number;
  readonly #signal: AbortSignal;
  #woken = false;
  #rouse: () => void = () => undefined;

  constructor(every_ms: number, signal: AbortSignal) {
    this.#every_ms = every_ms;
    this.#signal = signal;
  }

  /** Before looking: what comes after the look is not missed. */
  reset(): void {
    this.#woken = false;
  }

  now(): void {
    this.#woken = true;
    this.#rouse();
  }

  async wait(): Promise<'woken' | 'time'> {
    if (this.#woken || this.#signal.aborted) return 'woken';
    return new Promise((resolve) => {
      const done = (why: 'woken' | 'time') => {
        clearTimeout(timer);
        this.#signal.removeEventListener('abort', aborted);
        resolve(why);
      };
      const aborted = () => done('woken');
      const timer = setTimeout(() => done('time'), this.#every_ms);
      this.#rouse = () => done('woken');
      this.#signal.addEventListener('abort', aborted, { once: true });
    });
  }
}
