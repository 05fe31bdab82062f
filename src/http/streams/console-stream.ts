/**
 * The live serial console: a ticket admits the caller's WebSocket, which is spliced with the stream that the agent of the
 * VM's host opens. The bytes pass through unread.
 * - Host and Origin are checked as for any request.
 * - Neither side reads faster than the other takes; a peer that does not answer pings is disconnected.
 * - The credential behind the ticket is reauthorised every few seconds; if that fails, the console closes.
 * - An open console counts as use of the VM: the idle timeout begins when it closes.
 * - Consoles are bounded for each organisation and for the process.
 */
import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import type { FastifyInstance } from 'fastify';
import { type RawData, WebSocket, WebSocketServer } from 'ws';
import { AppError, messageOf } from '../../lib/errors.ts';
import { isId } from '../../lib/ids.ts';
import { streamLimit } from '../../orgs/quotas.ts';
import { type ConsoleHolder, consolePlace, consumeConsoleTicket } from '../../vms/console.ts';
import type { AppContext } from '../context.ts';
import { refuseUpgrade } from '../errors.ts';
import type { KnownHosts } from '../server/known-hosts.ts';
import { newRequestId } from '../server/request-id.ts';
import type { StreamSlots } from './stream-slots.ts';

const PATH = /^\/v1\/instances\/([^/?]{1,64})\/vm\/console\/stream(?:\?|$)/;
const OPEN_WITHIN_MS = 10_000;
const REAUTHORISE_MS = 15_000;
/** A peer that has answered no ping for this long is gone. */
const SILENT_MS = 30_000;
const MESSAGE_BYTES = 64 * 1024;
const BUFFER_BYTES = 256 * 1024;

/** Close codes (RFC 6455, section 7.4.1, and its registry). */
const CLOSE = { over: 1000, going_away: 1001, revoked: 1008 } as const;

/** Whether a request for an upgrade is one for a console. Any other is served as an ordinary request. */
export function isConsoleStream(request: Pick<IncomingMessage, 'url' | 'headers'>): boolean {
  return PATH.test(request.url ?? '') && request.headers.upgrade?.toLowerCase() === 'websocket';
}

type Context = Pick<AppContext, 'db' | 'host_calls' | 'log' | 'quotas' | 'heartbeat_ms'> & {
  readonly known_hosts: KnownHosts;
};

export class ConsoleStreams {
  readonly #context: Context;
  readonly #server = new WebSocketServer({
    noServer: true,
    maxPayload: MESSAGE_BYTES,
    perMessageDeflate: false,
    clientTracking: true,
  });

  readonly #slots: StreamSlots;
  readonly #ids = new WeakMap<IncomingMessage, string>();

  /** `ipOf`: the caller's address, determined as Fastify does. */
  constructor(
    app: FastifyInstance,
    context: Context,
    slots: StreamSlots,
    ipOf: (request: IncomingMessage) => string,
  ) {
    this.#context = context;
    this.#slots = slots;
    app.server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
      const request_id = newRequestId();
      this.#ids.set(request, request_id);
      socket.on('error', () => socket.destroy());
      this.#accept(request, socket, head, ipOf(request)).catch((error: unknown) =>
        refuseUpgrade(error, socket, request_id, context.log),
      );
    });
    this.#server.on('headers', (headers, request) => {
      headers.push(`X-Request-Id: ${this.#ids.get(request)}`);
    });
    this.#server.on('wsClientError', ({ message }, socket) => {
      refuseUpgrade(
        new AppError('INVALID_REQUEST', { message: `${message}.` }),
        socket,
        newRequestId(),
        context.log,
      );
    });
    app.addHook('preClose', async () => {
      for (const each of this.#server.clients) each.close(CLOSE.going_away, 'the server is closing');
      this.#server.close();
    });
  }

  async #accept(request: IncomingMessage, socket: Duplex, head: Buffer, ip: string): Promise<void> {
    const { db, host_calls, log, quotas } = this.#context;
    const id = PATH.exec(request.url ?? '')?.[1] ?? '';
    this.#refuseForeign(request);
    const query = new URL(request.url ?? '', 'http://console').searchParams;
    if (!isId('inst', id)) throw new AppError('NOT_FOUND');
    const holder = await consumeConsoleTicket(db, id, query.get('ticket') ?? '');
    const { host_id, instance_id, vm_id } = await consolePlace(db, holder, ip);
    const limit = await streamLimit(db, quotas, holder.org_id);
    // The caller has disconnected.
    if (socket.destroyed) return;
    socket.once('close', this.#slots.take(holder.org_id, limit));
    const gone = new AbortController();
    socket.once('close', () => gone.abort());
    const call = { kind: 'console', instance_id, vm_id } as const;
    const line = await host_calls.open(host_id, call, OPEN_WITHIN_MS, gone.signal);
    let upgraded = false;
    this.#server.handleUpgrade(request, socket, head, (client) => {
      upgraded = true;
      const request_id = this.#ids.get(request);
      log.info({ instance_id, credential: holder.credential.id, request_id }, 'a console was opened');
      splice(client, line);
      this.#watch(client, holder, ip);
    });
    // The caller has disconnected, or its handshake is invalid.
    if (!upgraded) line.destroy();
  }

  #refuseForeign(request: IncomingMessage): void {
    this.#context.known_hosts.requireHost(request);
    this.#context.known_hosts.requireOwnOrigin(request);
  }

  #watch(client: WebSocket, holder: ConsoleHolder, ip: string): void {
    let last_pong_ms = performance.now();
    client.on('pong', () => {
      last_pong_ms = performance.now();
    });
    let checking = false;
    const check = async (): Promise<void> => {
      if (performance.now() - last_pong_ms > SILENT_MS) return client.terminate();
      client.ping();
      if (checking) return;
      checking = true;
      try {
        await consolePlace(this.#context.db, holder, ip);
      } catch (error) {
        // If the database is unavailable, the credential may still be valid.
        if (!(error instanceof AppError)) return;
        const over = error.code === 'VM_NOT_RUNNING' || error.code === 'CONFLICT';
        client.close(over ? CLOSE.over : CLOSE.revoked, messageOf(error).slice(0, 120));
      } finally {
        checking = false;
      }
    };
    const timer = setInterval(() => void check(), this.#context.heartbeat_ms ?? REAUTHORISE_MS);
    client.on('close', () => clearInterval(timer));
  }
}

function splice(client: WebSocket, line: Duplex): void {
  line.on('data', (chunk: Buffer) => {
    if (client.readyState !== WebSocket.OPEN) return;
    client.send(chunk, { binary: true }, () => {
      if (line.isPaused() && client.bufferedAmount < BUFFER_BYTES) line.resume();
    });
    if (client.bufferedAmount >= BUFFER_BYTES) line.pause();
  });
  line.on('error', () => line.destroy());
  // A socket of an HTTP server would stay half open.
  line.on('end', () => line.destroy());
  line.on('close', () => client.close(CLOSE.over, 'the console has ended'));
  client.on('message', (data: RawData) => {
    // After our close the peer may send for another half minute, until it answers.
    if (client.readyState !== WebSocket.OPEN) return;
    if (line.write(data as Buffer)) return;
    client.pause();
    line.once('drain', () => client.resume());
  });
  client.on('error', () => client.terminate());
  client.on('close', () => line.destroy());
}
