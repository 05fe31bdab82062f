/**
 * Handles a guest's TLS connection to a server that a secret of the VM names. The proxy connects to the server by TLS,
 * then accepts the guest's TLS with a certificate that is signed by the instance's authority. In the header fields of
 * requests, it replaces placeholders by the values of secrets.
 *
 *   guest ══ TLS, certificate of ours ══ proxy ══ TLS, verified ══ server
 *
 * Both sides speak the same version of HTTP, which the server chose of those that the guest offered, so no request is
 * translated. Each connection of the guest has one to the server. Invariants:
 * - Nothing is sent to a server before its certificate was verified for the name.
 * - Each request names the same host as the TLS connection.
 * - A request gets the values that are valid at that moment, of secrets whose hosts cover this server.
 */
import { constants } from 'node:crypto';
import { Agent, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { createSecureServer, type Http2SecureServer, type ServerHttp2Session } from 'node:http2';
import { createServer as createHttps } from 'node:https';
import type { Socket } from 'node:net';
import type { SecureContext, TLSSocket } from 'node:tls';
import { Semaphore } from '../shared/concurrency.ts';
import { contain } from '../shared/contain.ts';
import { sentName } from '../shared/egress-policy.ts';
import type { Destination } from './address-handler.ts';
import type { ReadHello } from './client-hello.ts';
import {
  handledBy,
  keptFields,
  originForm,
  type Passing,
  passRequest,
  passUpgrade,
  RELAY_OPTIONS,
  readRequest,
  refuseGuest,
  sendText,
} from './http-relay.ts';
import { relaySession, SESSION_OPTIONS } from './http2-relay.ts';
import type { ProxiedGuest } from './proxied-guest.ts';
import {
  fillRequest,
  HTTPS_PORT,
  type Intercepted,
  NOT_POSSIBLE,
  passesToGuest,
  type RefusedRequest,
  type Use,
} from './secret-request.ts';
import { connectVerified, ServerFailure, type TrustedRoots } from './secret-server.ts';
import type { TlsContexts } from './tls-contexts.ts';

const HANDSHAKE_MS = 10_000;
/** Of one VM. Each has two TLS connections. */
const CONNECTIONS_MAX = 256;
/** Of one VM: handshakes at a time, which cost the most. */
const OPENING_MAX = 8;

export interface SecretHandlerOptions {
  readonly contexts: TlsContexts;
  readonly roots: TrustedRoots;
  readonly reportFailure: (guest: string, name: string, reason: string) => void;
}

interface Arriving extends Intercepted {
  readonly context: SecureContext;
}

export class SecretHandler {
  readonly #options: SecretHandlerOptions;
  readonly #uses = new WeakMap<ProxiedGuest, Use>();
  /** By its addresses and ports. */
  readonly #arriving = new Map<string, Arriving>();
  readonly #connections = new WeakMap<object, Intercepted & { readonly agent: Agent }>();
  readonly #http1: Server;
  readonly #http2: Http2SecureServer;

  constructor(options: SecretHandlerOptions) {
    this.#options = options;
    const arriving = this.#arriving;
    const tls = {
      // Node calls it as a method of the socket. #arrived checks the name.
      SNICallback(
        this: TLSSocket,
        _name: string,
        done: (error: Error | null, context?: SecureContext) => void,
      ) {
        done(null, arriving.get(keyOf(this))?.context);
      },
      handshakeTimeout: HANDSHAKE_MS,
      // A resumed session shows no certificate, so a client would go on with that of an authority which was replaced.
      secureOptions: constants.SSL_OP_NO_TICKET,
      minVersion: 'TLSv1.2',
    } as const;
    this.#http1 = handledBy(contain(createHttps({ ...RELAY_OPTIONS, ...tls })) as unknown as Server, {
      request: (incoming, response) => this.#serve(incoming, response),
      upgrade: (incoming, socket, head) => this.#upgrade(incoming, socket, head),
      connect: (_incoming, socket) => refuseGuest(socket, 405, NOT_POSSIBLE),
      unreadable: (socket) => refuseGuest(socket, 400, 'This is no request by HTTP.'),
    });
    this.#http1.prependListener('secureConnection', (socket: TLSSocket) => this.#take1(socket));
    this.#http1.on('tlsClientError', (_error: Error, socket: Socket) => socket.destroy());
    this.#http2 = contain(createSecureServer({ ...SESSION_OPTIONS, ...tls }));
    this.#http2.on('session', (session: ServerHttp2Session) => this.#take2(session));
    this.#http2.on('sessionError', () => undefined);
    this.#http2.on('tlsClientError', (_error: Error, socket: Socket) => socket.destroy());
  }

  async pass(
    socket: Socket,
    guest: ProxiedGuest,
    asked: ReadHello & { readonly name: string; readonly to: Destination; readonly received: Buffer },
  ): Promise<void> {
    const { name, to, protocols, received } = asked;
    const { authority } = guest;
    const use = this.#useOf(guest);
    if (authority === null || use.connections >= CONNECTIONS_MAX) return void socket.resetAndDestroy();
    use.connections += 1;
    socket.once('close', () => {
      use.connections -= 1;
    });
    const offered = ['h2', 'http/1.1'].filter((each) => protocols.includes(each));
    const again = () => this.#dial(guest, { name, to }, offered.includes('http/1.1') ? ['http/1.1'] : []);
    await use.opening.acquire();
    try {
      if (socket.destroyed) return;
      const [context, server] = await Promise.all([
        this.#options.contexts.contextFor(authority, name),
        this.#dial(guest, { name, to }, offered).catch((error: unknown) => {
          if (error instanceof ServerFailure) return error;
          throw error;
        }),
      ]);
      if (!(server instanceof ServerFailure)) socket.once('close', () => server.destroy());
      if (context === null || socket.destroyed) {
        if (!(server instanceof ServerFailure)) server.destroy();
        return void socket.resetAndDestroy();
      }
      this.#begin(socket, { guest, name, use, server, dial: again, context }, received, offered);
    } finally {
      use.opening.release();
    }
  }

  #begin(socket: Socket, connection: Arriving, received: Buffer, offered: readonly string[]): void {
    const { server } = connection;
    const key = keyOf(socket);
    this.#arriving.set(key, connection);
    socket.once('close', () => this.#arriving.delete(key));
    const by_http2 =
      server instanceof ServerFailure ? !offered.includes('http/1.1') && offered.length > 0 : isHttp2(server);
    // A client that has gone must not leave its requests behind.
    socket.allowHalfOpen = false;
    socket.unshift(received);
    (by_http2 ? this.#http2 : this.#http1).emit('connection', socket);
  }

  /** @throws ServerFailure */
  async #dial(
    guest: ProxiedGuest,
    { name, to }: { readonly name: string; readonly to: Destination },
    offered: readonly string[],
  ): Promise<TLSSocket> {
    try {
      const address = await guest.serverAddress(name, to.address);
      if (address === null) throw new ServerFailure(`the host's resolver gives no usable address of ${name}`);
      return await connectVerified({ name, address, port: to.port }, offered, this.#options.roots);
    } catch (error) {
      if (error instanceof ServerFailure) this.#options.reportFailure(guest.address, name, error.message);
      throw error;
    }
  }

  #useOf(guest: ProxiedGuest): Use {
    const known = this.#uses.get(guest);
    if (known) return known;
    const use = { connections: 0, streams: 0, opening: new Semaphore(OPENING_MAX) };
    this.#uses.set(guest, use);
    return use;
  }

  /** The connection whose handshake is over; null: it is not the one that was announced. */
  #arrived(socket: TLSSocket): Intercepted | null {
    const connection = this.#arriving.get(keyOf(socket));
    socket.on('error', () => socket.destroy());
    // Another handshake could name another server.
    socket.disableRenegotiation();
    if (connection && sentName(socket.servername || '') === connection.name) return connection;
    socket.destroy();
    return null;
  }

  #take1(socket: TLSSocket): void {
    const connection = this.#arrived(socket);
    if (!connection) return;
    const agent = new ServerAgent(connection);
    socket.once('close', () => agent.destroy());
    this.#connections.set(socket, { ...connection, agent });
  }

  #take2(session: ServerHttp2Session): void {
    const connection = this.#arrived(session.socket as TLSSocket);
    if (connection) relaySession(session, connection);
    else session.destroy();
  }

  async #serve(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    const connection = this.#connections.get(incoming.socket);
    const passing = connection ? passingOf(incoming, connection) : REFUSED_UNKNOWN;
    if (!('said' in passing)) return void passRequest(incoming, response, passing);
    incoming.resume();
    sendText(response, passing.status, passing.said);
  }

  async #upgrade(incoming: IncomingMessage, socket: Socket, head: Buffer): Promise<void> {
    const connection = this.#connections.get(socket);
    const passing = connection ? passingOf(incoming, connection) : REFUSED_UNKNOWN;
    if ('said' in passing) refuseGuest(socket, passing.status, passing.said);
    else passUpgrade(incoming, socket, head, passing);
  }
}

function isHttp2(server: TLSSocket): boolean {
  return server.alpnProtocol === 'h2';
}

function keyOf({ remoteAddress, remotePort, localAddress, localPort }: Socket): string {
  return [remoteAddress, remotePort, localAddress, localPort].join(' ');
}

const REFUSED_UNKNOWN: RefusedRequest = { status: 500, said: 'The connection is not known.' };

function passingOf(
  incoming: IncomingMessage,
  connection: Intercepted & { readonly agent: Agent },
): Passing | RefusedRequest {
  const checked = readRequest(incoming);
  const target = originForm(incoming.url ?? '', 'https');
  if (!checked || target === null) return { status: 400, said: 'The request is ambiguous.' };
  const filled = fillRequest(connection, { method: incoming.method ?? '', checked }, () =>
    keptFields(incoming.rawHeaders),
  );
  if ('said' in filled) return filled;
  const { agent, name } = connection;
  const to = { address: name, port: HTTPS_PORT };
  return { agent, to, target, fields: filled.fields, checked, passes: passesToGuest };
}

/** Node's pool of one connection, of which the first is there already. */
class ServerAgent extends Agent {
  readonly #dial: () => Promise<TLSSocket>;
  #first: TLSSocket | ServerFailure | null;

  constructor({ server, dial }: Intercepted) {
    super({ keepAlive: true, maxSockets: 1 });
    this.#first = server;
    this.#dial = dial;
  }

  override createConnection(
    _options: object,
    callback?: (error: Error | null, stream: TLSSocket) => void,
  ): undefined {
    const first = this.#first;
    this.#first = null;
    if (first instanceof ServerFailure) callback?.(first, undefined as unknown as TLSSocket);
    else if (first && !first.destroyed) callback?.(null, first);
    else
      this.#dial().then(
        (stream) => callback?.(null, stream),
        (error: Error) => callback?.(error, undefined as unknown as TLSSocket),
      );
  }
}
