/**
 * Answers requests with streams of server-sent events (HTML Living Standard, section 9.2), for clients that use `fetch`
 * with an Authorization header. A `StreamSource` says which rows a stream reads.
 *
 * - Rows are read in the order of their positions, which are given after commit. So a stream that resumes after
 *   `Last-Event-ID` neither misses nor repeats a row. If that event is no longer known, the stream sends `reset`.
 * - Back-pressure: a batch is read once the reader has taken the one before. A reader that takes nothing for a minute
 *   is disconnected.
 * - A stream that has sent all rows waits a quarter of a second before it reads again: a read costs two statements.
 * - The caller is reauthorised before each batch and at each heartbeat. If this fails, the stream ends.
 * - Streams are limited for each organisation and for the process, and end at once when the server closes.
 */
import { Readable } from 'node:stream';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { Signal } from '../../shared/concurrency.ts';
import { AppError, invalid } from '../../shared/errors.ts';
import { isId } from '../../shared/ids.ts';
import { pause } from '../../shared/retry.ts';
import type { NotifyHub, Topic } from '../db/notify.ts';
import type { Db } from '../db/pool.ts';
import { principalOf, reauthorise } from '../http/access.ts';
import { disconnectSignal } from '../http/connections.ts';
import type { Principal } from '../identity/principal.ts';
import type { OpenStreams } from '../organisations/open-streams.ts';
import { headPosition, positionOf } from './store.ts';

const HEARTBEAT_MS = 15_000;
const STALLED_MS = 60_000;
const LAST_WORDS_MS = 500;
const BATCH = 100;
const BETWEEN_BATCHES_MS = 250;
const BUFFER_BYTES = 64 * 1024;
/** The reader's delay before it reconnects. */
const RETRY_MS = 2_000;

export interface EventFrame {
  /** A stream can resume after it; absent: it cannot. */
  readonly id?: string;
  readonly event: string;
  readonly data: unknown;
}

export interface StreamSource {
  readonly topic: Topic;
  /** The id within the topic, by the reader. */
  readonly wokenBy: (principal: Principal) => string;
  /** The rows after `position`, oldest first, at most `limit`. */
  readonly read: (
    principal: Principal,
    position: number,
    limit: number,
  ) => Promise<readonly { readonly position: number; readonly frame: EventFrame }[]>;
  /** A frame that is sent after the rows whenever it has changed. */
  readonly state?: (principal: Principal) => Promise<EventFrame>;
}

export interface StreamContext {
  readonly db: Db;
  readonly hub: NotifyHub;
  readonly heartbeat_ms?: number;
}

export class EventStreams {
  readonly #context: StreamContext;
  readonly #closing = new AbortController();
  readonly #open_streams: OpenStreams;

  constructor(app: FastifyInstance, context: StreamContext, open_streams: OpenStreams) {
    this.#context = context;
    this.#open_streams = open_streams;
    app.addHook('preClose', async () => this.#closing.abort());
  }

  /** Answers with a stream of `source`. @throws AppError QUOTA_EXCEEDED, UNAVAILABLE, INVALID_REQUEST */
  async answer(request: FastifyRequest, reply: FastifyReply, source: StreamSource): Promise<FastifyReply> {
    const { db } = this.#context;
    const { org_id } = principalOf(request);
    const start = await startOf(db, request.headers['last-event-id']);
    const release = await this.#open_streams.open(org_id);
    const disconnected = disconnectSignal(reply);
    const signal = AbortSignal.any([disconnected, this.#closing.signal]);
    this.#cutOffAtClose(reply, disconnected);
    const writer = new FrameWriter(signal);
    const pump = new Pump(this.#context, request, source, writer, signal);
    pump
      .run(start)
      .catch((error: unknown) => request.log.info({ err: error }, 'an event stream ended'))
      .finally(() => {
        release();
        writer.end();
      });
    reply
      .header('content-type', 'text/event-stream')
      .header('cache-control', 'no-store')
      .header('x-accel-buffering', 'no')
      // A closing server does not wait for the connection afterwards.
      .header('connection', 'close');
    return reply.send(writer.stream);
  }

  /** A closing server does not wait for a reader that takes nothing. */
  #cutOffAtClose(reply: FastifyReply, disconnected: AbortSignal): void {
    const cut = () => {
      const timer = setTimeout(() => reply.raw.destroy(), LAST_WORDS_MS);
      disconnected.addEventListener('abort', () => clearTimeout(timer), { once: true });
    };
    this.#closing.signal.addEventListener('abort', cut, { once: true, signal: disconnected });
  }
}

interface Start {
  readonly position: number;
  /** The requested event is no longer known. */
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

/** Writes one stream: state, rows, heartbeats. */
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
    const changes = new Signal();
    const principal = principalOf(this.#request);
    const unsubscribe = hub.subscribe(this.#source.topic, this.#source.wokenBy(principal), changes.notify);
    try {
      await writer.write(`retry: ${RETRY_MS}\n\n`);
      if (start.reset) await writer.write(frameText({ event: 'reset', data: {} }));
      let { position } = start;
      let state = '';
      while (!this.#signal.aborted) {
        const since = changes.count;
        const reader = await this.#reader();
        if (reader === null) return;
        // Read before the rows, so that it is never newer than they are.
        const now = this.#source.state ? frameText(await this.#source.state(reader)) : '';
        const rows = await this.#source.read(reader, position, BATCH);
        for (const row of rows) {
          await writer.write(frameText(row.frame));
          position = row.position;
        }
        if (rows.length === BATCH) continue;
        if (now !== state) await writer.write(now);
        state = now;
        if (rows.length > 0) await pause(BETWEEN_BATCHES_MS, this.#signal);
        const silence = AbortSignal.timeout(heartbeat_ms);
        await changes.wait({ since, signal: AbortSignal.any([this.#signal, silence]) });
        if (silence.aborted) await writer.write(': heartbeat\n\n');
      }
    } finally {
      unsubscribe();
    }
  }

  /** The caller, reauthorised; null if that failed and the stream has sent `end`. */
  async #reader(): Promise<Principal | null> {
    try {
      return await reauthorise(this.#context.db, this.#request);
    } catch (error) {
      if (!(error instanceof AppError)) throw error;
      const { code, message } = error;
      await this.#writer.write(frameText({ event: 'end', data: { code, message } }));
      return null;
    }
  }
}

/** JSON without line breaks, so `data` is one line. */
function frameText({ id, event, data }: EventFrame): string {
  return `${id === undefined ? '' : `id: ${id}\n`}event: ${event}\ndata: ${JSON.stringify(data)}\n\n`;
}

/** Writes to a reader that may be slow: a write resolves when there is room for the next. */
class FrameWriter {
  readonly stream: Readable;
  readonly #signal: AbortSignal;
  #room: () => void = () => undefined;

  constructor(signal: AbortSignal) {
    this.#signal = signal;
    this.stream = new Readable({ highWaterMark: BUFFER_BYTES, read: () => this.#room() });
    // A reader that disconnects is a normal end.
    this.stream.on('error', () => undefined);
  }

  async write(text: string): Promise<void> {
    this.#signal.throwIfAborted();
    if (this.stream.destroyed) throw new Error('the reader has disconnected');
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
