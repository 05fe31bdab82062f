/**
 * Watches and bounds the connections of the public API. It tells when a client disconnects, exempts some requests from
 * the time limit, bounds the memory of bodies, ends the connections of a closing server, and relays WebSockets to
 * streams.
 */
import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { type RawData, WebSocket } from 'ws';
import { AppError, errnoOf } from '../../shared/errors.ts';
import type { OrgId } from '../../shared/ids.ts';
import { writeOrPause } from '../../shared/streams.ts';

/** Aborts when the caller disconnects, or has its answer; aborted already if that has happened before. */
export function disconnectSignal({ raw, request }: FastifyReply): AbortSignal {
  const controller = new AbortController();
  const { socket } = request.raw;
  const gone = () => controller.abort();
  if (socket.destroyed) gone();
  // A response that waits for an earlier one on its connection gets no event of its own.
  socket.once('close', gone);
  raw.once('close', () => {
    socket.off('close', gone);
    gone();
  });
  return controller.signal;
}

// Requests whose body may take as long as it comes, although Node ends any other that is not complete within a minute.

const sockets = new WeakSet<Socket>();

/** The handler must bound the silence of the caller. */
export function takesLong(request: IncomingMessage): void {
  const { socket } = request;
  sockets.add(socket);
  request.once('close', () => sockets.delete(socket));
}

/** Whether an error of a client is only that its request takes long, and may. */
export function mayTakeLong(error: Error, socket: Socket): boolean {
  return errnoOf(error) === 'ERR_HTTP_REQUEST_TIMEOUT' && sockets.has(socket);
}

// Bounds the memory of bodies under way: each organisation may send so much at a time, of which small bodies count nothing.

/** Also the most that a route takes without a credential. */
export const SMALL_BODY_BYTES = 64 * 1024;
const MOST_BYTES = 64 * 1024 * 1024;

export class BodyBudget {
  readonly #under_way = new Map<OrgId, number>();

  /** Until the answer was sent. A body that the handler reads as it comes is in nobody's memory. @throws AppError UNAVAILABLE */
  take(org_id: OrgId, request: FastifyRequest, reply: FastifyReply): void {
    const { bodyLimit, config } = request.routeOptions;
    if (config.streamed_body === true) return;
    const bytes = announcedBytes(request, bodyLimit ?? 0);
    if (bytes <= SMALL_BODY_BYTES) return;
    const before = this.#under_way.get(org_id) ?? 0;
    if (before + bytes > MOST_BYTES) {
      const message = 'Too many large requests of the organisation are under way. Try again shortly.';
      throw new AppError('UNAVAILABLE', { message, retry_after_seconds: 1 });
    }
    this.#under_way.set(org_id, before + bytes);
    const over = disconnectSignal(reply);
    if (over.aborted) this.#give(org_id, bytes);
    else over.addEventListener('abort', () => this.#give(org_id, bytes), { once: true });
  }

  #give(org_id: OrgId, bytes: number): void {
    const left = (this.#under_way.get(org_id) ?? 0) - bytes;
    if (left > 0) this.#under_way.set(org_id, left);
    else this.#under_way.delete(org_id);
  }
}

/** At most what the route takes: a longer body is refused. */
function announcedBytes({ headers }: FastifyRequest, most: number): number {
  if (headers['transfer-encoding'] !== undefined) return most;
  return Math.min(Number(headers['content-length'] ?? 0), most);
}

// A closing server waits for its connections, and Node ends only those that are idle at that moment. It would wait 72 s for
// a connection that gets its answer just afterwards, and forever for one that never sent a request.

const CHECK_MS = 50;
/** Requests that are still being served then are cut off. */
const GRACE_MS = 10_000;

/** Ends each connection of a closing `app` as soon as it is idle, and all of them after `grace_ms`. */
export function endConnectionsAtClose(app: FastifyInstance, grace_ms = GRACE_MS): void {
  app.addHook('preClose', async () => {
    const { server } = app;
    const idle = setInterval(() => server.closeIdleConnections(), CHECK_MS);
    const all = setTimeout(() => server.closeAllConnections(), grace_ms);
    const done = () => {
      clearInterval(idle);
      clearTimeout(all);
    };
    if (server.listening) server.once('close', done);
    else done();
  });
}

// Passes the bytes of a WebSocket's messages to a stream, and back. Neither side reads faster than the other takes.

/** Close codes (RFC 6455, section 7.4.1, and its registry); `output_lost` is our own. */
export const CLOSE = { over: 1000, going_away: 1001, revoked: 1008, output_lost: 4409 } as const;
/** The text message that ends one direction of a half-open stream. */
const END = 'end';
const BUFFER_BYTES = 256 * 1024;

/**
 * @param half_open a text message `end` ends the direction of its sender; binary messages are the bytes. Else all messages
 * are bytes, and the end of the stream closes the WebSocket
 */
export function relayWebSocket(
  client: WebSocket,
  line: Duplex,
  { name, half_open }: { readonly name: string; readonly half_open: boolean },
): void {
  line.on('data', (chunk: Buffer) => {
    if (client.readyState !== WebSocket.OPEN) return;
    client.send(chunk, { binary: true }, () => {
      if (line.isPaused() && client.bufferedAmount < BUFFER_BYTES) line.resume();
    });
    if (client.bufferedAmount >= BUFFER_BYTES) line.pause();
  });
  line.on('error', () => line.destroy());
  line.on('end', () => {
    if (half_open && client.readyState === WebSocket.OPEN) client.send(END);
  });
  line.on('close', () => client.close(CLOSE.over, `the ${name} has ended`));
  client.on('message', (data: RawData, is_binary: boolean) => {
    // After our close the peer may send for another half minute, until it answers.
    if (client.readyState !== WebSocket.OPEN || line.writableEnded) return;
    if (half_open && !is_binary) {
      if (String(data) === END) line.end();
      return;
    }
    writeOrPause(client, line, data as Buffer);
  });
  client.on('error', () => client.terminate());
  client.on('close', () => line.destroy());
}
