/**
 * The listener of HTTP ports: serves HTTP/1.1 and HTTP/2 at one address with Node's servers. With TLS, ALPN chooses the
 * protocol. Without TLS, a connection that begins with HTTP/2's preface gets HTTP/2.
 *
 * The number of connections is bounded in total and by source, and the time that a client may take to send its headers
 * is bounded too.
 */
import {
  createServer as createHttp,
  type Server as HttpServer,
  type IncomingMessage,
  type ServerOptions,
  type ServerResponse,
} from 'node:http';
import { createServer as createHttp2, type Http2Server, type ServerHttp2Session } from 'node:http2';
import { createServer as createHttps } from 'node:https';
import {
  createServer as createTcp,
  type ListenOptions,
  type Server as NetServer,
  type Socket,
} from 'node:net';
import type { Duplex } from 'node:stream';
import type { TLSSocket, Server as TlsServer } from 'node:tls';
import { ConnectionBudget } from '../../shared/connection-budget.ts';
import { contain } from '../../shared/contain.ts';
import type { HttpLimits } from '../limits.ts';
import { Refusal, unreadable } from './refusal.ts';
import { isWebSocket, refuseOnSocket } from './upgrade.ts';

const PREFACE = 'PRI ';
const BACKLOG = 1_024;
const CONNECTIONS_CHECK_MS = 5_000;
const STREAMS_OF_A_CONNECTION = 128;
/**
 * Node accepts one connection of a listening socket in each turn of its loop. While many requests are served a turn is long, and new clients would
 * wait behind each other for seconds. The kernel spreads them over these sockets.
 */
const LISTENING_SOCKETS = 16;

export interface Certificate {
  readonly cert: Buffer;
  readonly key: Buffer;
}

export interface HttpHandlers {
  readonly request: (request: IncomingMessage, response: ServerResponse) => void;
  /** A WebSocket's handshake by HTTP/1.1. */
  readonly upgrade: (request: IncomingMessage, socket: Duplex, head: Buffer) => void;
  /** A CONNECT by HTTP/2, which may be a WebSocket's. */
  readonly connect: (request: IncomingMessage, response: ServerResponse) => void;
}

export class HttpListener {
  readonly #limits: HttpLimits;
  readonly #http: HttpServer;
  readonly #http2: Http2Server;
  readonly #secure: boolean;
  /** The first listening socket is that of `#http`. */
  readonly #further: readonly NetServer[];
  readonly #sockets = new Set<Socket>();
  readonly #budget: ConnectionBudget;
  /** The responses under way on each connection of HTTP/1.1. */
  readonly #responses = new WeakMap<Duplex, Set<ServerResponse>>();

  constructor(
    certificate: Certificate | null,
    handlers: HttpHandlers,
    limits: HttpLimits,
    budget = new ConnectionBudget({ most: limits.connections, per_source: limits.connections }),
  ) {
    this.#limits = limits;
    this.#budget = budget;
    this.#secure = certificate !== null;
    const options: ServerOptions = {
      maxHeaderSize: limits.header_bytes,
      headersTimeout: limits.headers_ms,
      // A body may take as long as its bytes keep coming.
      requestTimeout: 0,
      keepAliveTimeout: limits.keep_alive_ms,
      connectionsCheckingInterval: CONNECTIONS_CHECK_MS,
      requireHostHeader: false,
      noDelay: true,
      keepAlive: true,
      keepAliveInitialDelay: 60_000,
      shouldUpgradeCallback: isWebSocket,
    };
    this.#http = certificate
      ? (contain(
          createHttps({
            ...options,
            ...certificate,
            minVersion: 'TLSv1.2',
            ALPNProtocols: ['h2', 'http/1.1'],
            handshakeTimeout: limits.headers_ms,
          }),
        ) as unknown as HttpServer)
      : contain(createHttp(options));
    // No field is dropped: the size of all is bounded.
    this.#http.maxHeadersCount = 0;
    this.#http.timeout = limits.idle_ms;
    this.#http2 = contain(
      createHttp2({
        settings: { enableConnectProtocol: true, maxConcurrentStreams: STREAMS_OF_A_CONNECTION },
        maxSessionMemory: 16,
      }),
    );
    const { noDelay, keepAlive, keepAliveInitialDelay } = options;
    const accepting = { noDelay, keepAlive, keepAliveInitialDelay } as const;
    this.#further = Array.from({ length: LISTENING_SOCKETS - 1 }, () =>
      contain(createTcp(accepting, (socket) => void this.#http.emit('connection', socket))),
    );
    this.#route(handlers);
  }

  /** @throws the listener's error */
  async listen(host: string, port: number): Promise<void> {
    // Another program must not share the address: this one fails then.
    const trial = contain(createTcp());
    await listening(trial, { host, port, exclusive: true });
    const found = portOf(trial);
    await new Promise((resolve) => trial.close(resolve));
    const shared = { host, port: found, reusePort: true, backlog: BACKLOG };
    try {
      for (const server of [this.#http, ...this.#further]) await listening(server, shared);
    } catch (error) {
      this.destroy();
      throw error;
    }
  }

  get port(): number {
    return portOf(this.#http);
  }

  /** For the connections from now on. */
  setCertificate(certificate: Certificate): void {
    (this.#http as unknown as TlsServer).setSecureContext(certificate);
  }

  destroy(): void {
    for (const server of [this.#http, ...this.#further]) server.close();
    for (const each of this.#sockets) each.destroy();
  }

  /** Node's servers take a connection as an event: each goes to the one whose protocol it speaks. */
  #route(handlers: HttpHandlers): void {
    const event = this.#secure ? 'secureConnection' : 'connection';
    const to_http1 = this.#http.listeners(event) as ((socket: Duplex) => void)[];
    this.#http.removeAllListeners(event);
    const http1 = (socket: Duplex) => {
      for (const each of to_http1) each.call(this.#http, socket);
    };
    const http2 = (socket: Duplex) => {
      // Node's HTTP/1.1 server takes half-open connections. Its HTTP/2 would not notice that a client has gone.
      socket.allowHalfOpen = false;
      this.#http2.emit('connection', socket);
    };
    if (this.#secure) {
      (this.#http as unknown as NetServer).on('connection', (socket) => this.#admit(socket));
      this.#http.on('secureConnection', (socket: TLSSocket) => {
        socket.on('error', () => socket.destroy());
        if (socket.alpnProtocol === 'h2') http2(socket);
        else http1(socket);
      });
    } else {
      this.#http.on('connection', (socket: Socket) => {
        if (this.#admit(socket)) this.#sniff(socket, { http1, http2 });
      });
    }
    this.#http.on('tlsClientError', (_error: Error, socket: Socket) => socket.destroy());
    const request = (each: IncomingMessage, response: ServerResponse) => {
      response.once('close', this.#budget.use(each.socket));
      if (each.httpVersionMajor === 1) this.#noteResponse(each.socket, response);
      handlers.request(each, response);
    };
    this.#http.on('request', request).on('checkContinue', request);
    this.#http.on('clientError', (error: NodeJS.ErrnoException, socket: Duplex) => {
      const responses = [...(this.#responses.get(socket) ?? [])];
      const has_begun = responses.some(({ headersSent }) => headersSent);
      if (has_begun || responses.length > 1 || !socket.writable) return socket.destroy();
      refuseOnSocket(socket, unreadable(error.code), undefined);
      // Of the damaged request, which needs no other answer.
      if (responses.length > 0) socket.destroy();
    });
    this.#http.on('connect', ({ headers }, socket: Socket) => {
      socket.on('error', () => socket.destroy());
      if (this.#budget.isUsed(socket)) return socket.destroy();
      const refusal = new Refusal(405, 'INVALID_REQUEST', 'CONNECT is not served here.');
      refuseOnSocket(socket, refusal, headers.accept);
    });
    this.#http.on('upgrade', (each: IncomingMessage, socket: Socket, head: Buffer) => {
      // Answers to earlier requests of this connection are still to come.
      if (this.#budget.isUsed(socket)) return socket.destroy();
      socket.once('close', this.#budget.use(socket));
      return handlers.upgrade(each, socket, head);
    });
    type Http2Handler = (request: unknown, response: unknown) => void;
    this.#http2.on('request', request as unknown as Http2Handler);
    this.#http2.on('checkContinue', request as unknown as Http2Handler);
    this.#http2.on('connect', ((each: IncomingMessage, response: ServerResponse) => {
      response.once('close', this.#budget.use(each.socket));
      handlers.connect(each, response);
    }) as unknown as Http2Handler);
    this.#http2.on('session', (session: ServerHttp2Session) => this.#bound(session));
    this.#http2.on('sessionError', () => undefined);
  }

  /** Waits for the first bytes. */
  #sniff(
    socket: Socket,
    to: { readonly http1: (socket: Duplex) => void; readonly http2: (socket: Duplex) => void },
  ): void {
    const onError = () => socket.destroy();
    const timer = setTimeout(onError, this.#limits.keep_alive_ms);
    const look = () => {
      const head = socket.read() as Buffer | null;
      if (head === null) return;
      socket.unshift(head);
      const begins = head.subarray(0, PREFACE.length).toString('latin1');
      // A longer piece comes with the next event.
      if (head.length < PREFACE.length && PREFACE.startsWith(begins)) return;
      clearTimeout(timer);
      socket.off('readable', look).off('error', onError).off('end', onError);
      if (begins === PREFACE) to.http2(socket);
      else to.http1(socket);
    };
    socket.on('readable', look).on('error', onError).on('end', onError);
    socket.once('close', () => clearTimeout(timer));
  }

  /** False: there is no room, and it was closed. */
  #admit(socket: Socket): boolean {
    if (!this.#budget.admit(socket)) return false;
    this.#sockets.add(socket);
    socket.once('close', () => this.#sockets.delete(socket));
    return true;
  }

  #noteResponse(socket: Duplex, response: ServerResponse): void {
    const responses = this.#responses.get(socket) ?? new Set();
    this.#responses.set(socket, responses.add(response));
    response.once('close', () => responses.delete(response));
  }

  #bound(session: ServerHttp2Session): void {
    session.setTimeout(this.#limits.idle_ms, () => session.close());
    session.on('error', () => session.destroy());
  }
}

/** @throws the server's error */
function listening(server: NetServer | HttpServer, options: ListenOptions): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  server.once('error', reject);
  server.listen(options, () => {
    server.off('error', reject).on('error', () => undefined);
    resolve();
  });
  return promise;
}

function portOf(server: NetServer | HttpServer): number {
  const address = server.address();
  return typeof address === 'object' && address ? address.port : 0;
}
