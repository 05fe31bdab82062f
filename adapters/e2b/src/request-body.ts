/**
 * Reads the bodies of requests into memory, within three limits: for a body, for all of one caller, and for all
 * callers. Also sends the answers of the Connect protocol with JSON, which the package `e2b` speaks to a sandbox:
 *
 * - The body of a unary call and its answer are JSON.
 * - The answer to a stream consists of envelopes: a byte of flags, four bytes of length, and JSON. The last one has
 *   flag 2.
 */
import { once } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { Failure, failureOf } from './failures.ts';

/** Such a body counts nothing. It is also the most that is read before the caller has proved who it is. */
export const SMALL_BODY_BYTES = 64 * 1024;
const MOST_OF_A_CALLER_BYTES = 64 * 1024 * 1024;
const MOST_BYTES = 256 * 1024 * 1024;

export class BodyBudget {
  readonly #under_way = new Map<string, number>();
  #all = 0;

  /** Takes the room of a body until it was answered. @throws Failure resource_exhausted, too_large */
  take(caller: string, request: IncomingMessage, response: ServerResponse, max_bytes: number): void {
    const { 'content-length': length, 'transfer-encoding': encoding } = request.headers;
    const bytes = encoding === undefined ? Number(length ?? 0) : max_bytes;
    if (bytes > max_bytes) throw tooLarge(max_bytes);
    if (bytes <= SMALL_BODY_BYTES) return;
    const before = this.#under_way.get(caller) ?? 0;
    if (before + bytes > MOST_OF_A_CALLER_BYTES || this.#all + bytes > MOST_BYTES)
      throw new Failure('resource_exhausted', 'Too many large requests are under way.', {
        retry_after_seconds: 1,
      });
    this.#add(caller, bytes);
    response.once('close', () => this.#add(caller, -bytes));
  }

  #add(caller: string, bytes: number): void {
    this.#all += bytes;
    const now = (this.#under_way.get(caller) ?? 0) + bytes;
    if (now > 0) this.#under_way.set(caller, now);
    else this.#under_way.delete(caller);
  }
}

/** @throws Failure too_large */
export async function readBody(request: IncomingMessage, max_bytes: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of partsOfBody(request, max_bytes)) chunks.push(chunk);
  return Buffer.concat(chunks);
}

/** @throws Failure too_large */
export async function* partsOfBody(request: IncomingMessage, max_bytes: number): AsyncGenerator<Buffer> {
  let bytes = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > max_bytes) throw tooLarge(max_bytes);
    yield chunk;
  }
}

function tooLarge(max_bytes: number): Failure {
  const most = max_bytes < 2 ** 20 ? `${max_bytes / 2 ** 10} KiB` : `${max_bytes / 2 ** 20} MiB`;
  return new Failure('too_large', `A request here has at most ${most}.`);
}

const HEAD_BYTES = 5;
const END_OF_STREAM = 2;

export function sendJson(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}

/** The one message of a stream's request. @throws Failure invalid_argument */
export function unwrap(body: Buffer): unknown {
  if (body.length < HEAD_BYTES || body[0] !== 0 || body.readUInt32BE(1) !== body.length - HEAD_BYTES)
    throw new Failure('invalid_argument', 'The request is not one uncompressed message of JSON.');
  return parsed(body.subarray(HEAD_BYTES));
}

/** An object of JSON. @throws Failure invalid_argument */
export function parsed(body: Buffer): Readonly<Record<string, unknown>> {
  let value: unknown = {};
  try {
    if (body.length > 0) value = JSON.parse(body.toString('utf8'));
  } catch (cause) {
    throw new Failure('invalid_argument', 'The request is not JSON.', { cause });
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value))
    return value as Record<string, unknown>;
  throw new Failure('invalid_argument', 'The request is not an object of JSON.');
}

function envelope(flags: number, message: unknown): Buffer {
  const text = Buffer.from(JSON.stringify(message));
  const head = Buffer.alloc(HEAD_BYTES);
  head.writeUInt8(flags);
  head.writeUInt32BE(text.length, 1);
  return Buffer.concat([head, text]);
}

/** Sends the messages, and `idle` whenever none came for `idle_ms`. `gone`: the caller has disconnected. */
export async function sendStream(
  response: ServerResponse,
  messages: AsyncIterable<unknown>,
  { idle, idle_ms, gone }: { readonly idle: unknown; readonly idle_ms: number; readonly gone: AbortSignal },
): Promise<void> {
  response.writeHead(200, { 'content-type': 'application/connect+json' });
  response.flushHeaders();
  // A caller that does not read needs no sign of life.
  const timer = setInterval(() => response.writableNeedDrain || response.write(envelope(0, idle)), idle_ms);
  try {
    for await (const message of messages) {
      timer.refresh();
      if (!response.write(envelope(0, message))) await once(response, 'drain', { signal: gone });
    }
    response.end(envelope(END_OF_STREAM, {}));
  } catch (error) {
    if (gone.aborted) return;
    const { connect_code, message } = failureOf(error);
    response.end(envelope(END_OF_STREAM, { error: { code: connect_code, message } }));
  } finally {
    clearInterval(timer);
  }
}
