/**
 * HTTP from a guest. Node's server reads each request and Node's client writes it again, so that the server sees the requests that
 * were checked and no others. Each request's host must be permitted, and the connection's destination must be an address that the
 * resolver gave this VM for that host.
 */
import {
  Agent,
  createServer,
  type IncomingMessage,
  request,
  type Server,
  type ServerResponse,
} from 'node:http';
import type { Socket } from 'node:net';
import { pipeline } from 'node:stream';
import { sentName } from '../../lib/egress-policy.ts';
import type { Guest } from './guest.ts';
import type { Destination } from './tls-way.ts';

const HEADERS_MS = 15_000;
const IDLE_MS = 60_000;
/** They concern one connection (RFC 9110, section 7.6.1), and each of ours has its own. */
const HOP_BY_HOP = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'te',
  'trailer',
  'upgrade',
  'transfer-encoding',
]);

interface Connection {
  readonly guest: Guest;
  readonly to: Destination;
  readonly agent: Agent;
  /** Hosts of requests that were let through. */
  readonly names: Set<string>;
}

export class HttpWay {
  readonly #connections = new WeakMap<Socket, Connection>();
  readonly #server: Server;

  constructor() {
    this.#server = createServer({
      headersTimeout: HEADERS_MS,
      requestTimeout: 0,
      keepAliveTimeout: IDLE_MS,
      requireHostHeader: false,
      shouldUpgradeCallback: ({ headers }) => headers.upgrade?.toLowerCase() === 'websocket',
    });
    this.#server.on('request', (incoming, response) => void this.#serve(incoming, response));
    this.#server.on('checkContinue', (incoming, response) => void this.#serve(incoming, response));
    this.#server.on(
      'upgrade',
      (incoming, socket, head) => void this.#upgrade(incoming, socket as Socket, head),
    );
    this.#server.on('connect', (incoming, socket) => {
      const connection = this.#connections.get(socket as Socket);
      if (connection) denyRequest(connection, hostOf(incoming));
      socket.end('HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 0\r\n\r\n');
    });
    this.#server.on('clientError', (_error, socket) => {
      const connection = this.#connections.get(socket as Socket);
      if (connection && socket.writable) {
        connection.guest.deny({ name: null, ...connection.to });
        socket.end('HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n');
      }
      (socket as Socket).destroySoon();
    });
  }

  pass(socket: Socket, guest: Guest, to: Destination): void {
    const names = new Set<string>();
    const release = guest.hold({
      isPermitted: () => [...names].every((name) => guest.permitsName(name, to.port)),
      cut: () => socket.resetAndDestroy(),
    });
    if (!release) return void socket.resetAndDestroy();
    // One connection of the guest has one to the server, as if it were not relayed.
    const agent = new Agent({ keepAlive: true, maxSockets: 1, keepAliveMsecs: IDLE_MS });
    socket.once('close', () => {
      release();
      agent.destroy();
    });
    this.#connections.set(socket, { guest, to, agent, names });
    this.#server.emit('connection', socket);
  }

  async #serve(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    const connection = this.#connections.get(incoming.socket);
    if (!connection) return void incoming.destroy();
    const name = await permittedHost(connection, incoming);
    if (name === null) return refuse(incoming, response);
    const outgoing = this.#request(connection, incoming, keptHeaders(incoming));
    outgoing.on('response', (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.statusMessage, keptHeaders(answer));
      pipeline(answer, response, (error) => error && incoming.socket.destroy());
    });
    outgoing.on('continue', () => response.writeContinue());
    outgoing.on('error', () => {
      if (response.headersSent) incoming.socket.destroy();
      else response.writeHead(502, { Connection: 'close' }).end();
    });
    response.once('close', () => outgoing.destroy());
    // With 100-continue the body waits for the server's word.
    outgoing.flushHeaders();
    pipeline(incoming, outgoing, () => undefined);
  }

  async #upgrade(incoming: IncomingMessage, socket: Socket, head: Buffer): Promise<void> {
    const connection = this.#connections.get(socket);
    socket.on('error', () => socket.destroy());
    const name = connection ? await permittedHost(connection, incoming) : null;
    if (!connection || name === null)
      return void socket.end(`HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n${refusal(incoming)}`);
    const headers = [...keptHeaders(incoming), 'Connection', 'Upgrade', 'Upgrade', 'websocket'];
    const outgoing = this.#request(connection, incoming, headers);
    outgoing.on('upgrade', (answer, outside, first) => {
      outside.on('error', () => socket.destroy());
      outside.once('close', () => socket.destroy());
      socket.once('close', () => outside.destroy());
      socket.write(headText(answer, ['Connection', 'Upgrade', 'Upgrade', 'websocket']));
      socket.write(first);
      outside.write(head);
      outside.pipe(socket).pipe(outside);
    });
    outgoing.on('response', (answer) => {
      socket.write(headText(answer, ['Connection', 'close']));
      answer.pipe(socket);
    });
    outgoing.on('error', () => socket.destroy());
    outgoing.end();
  }

  #request(
    { agent, to }: Connection,
    { method = 'GET', url = '/', headers }: IncomingMessage,
    kept: string[],
  ) {
    const has_body = headers['transfer-encoding'] !== undefined;
    return request({
      agent,
      host: to.address,
      port: to.port,
      method,
      path: originForm(url),
      headers: has_body ? [...kept, 'Transfer-Encoding', 'chunked'] : kept,
      setHost: false,
    });
  }
}

/** The request's host if it is permitted; null: the denial is recorded. */
async function permittedHost(connection: Connection, incoming: IncomingMessage): Promise<string | null> {
  const { guest, to, names } = connection;
  const name = hostOf(incoming);
  if (
    name === null ||
    hostPort(incoming) !== to.port ||
    !guest.permitsName(name, to.port) ||
    !(await guest.nameHas(name, to.address)) ||
    !guest.permitsName(name, to.port)
  ) {
    denyRequest(connection, name);
    return null;
  }
  names.add(name);
  return name;
}

function denyRequest({ guest, to }: Connection, name: string | null): void {
  guest.deny({ name, ...to });
}

const AUTHORITY = /^([^:@/?#[\]]+)(?::([0-9]{1,5}))?$/;

/** The one host that the request names; null: none, several, or no host name. */
function hostOf(incoming: IncomingMessage): string | null {
  const authority = authorityOf(incoming);
  return authority === null ? null : sentName(authority[1] ?? '');
}

function hostPort(incoming: IncomingMessage): number {
  return Number(authorityOf(incoming)?.[2] ?? 80);
}

function authorityOf({ rawHeaders, url = '' }: IncomingMessage): RegExpExecArray | null {
  const hosts = rawHeaders.filter((_, at) => at % 2 === 1 && rawHeaders[at - 1]?.toLowerCase() === 'host');
  if (hosts.length !== 1) return null;
  const named = AUTHORITY.exec(hosts[0] ?? '');
  // In absolute form the URL overrides Host (RFC 9112, section 3.2.2), so both must say the same.
  const absolute = /^http:\/\/([^/?#]*)/i.exec(url);
  if (absolute) return absolute[1]?.toLowerCase() === hosts[0]?.toLowerCase() ? named : null;
  return url.startsWith('/') || url === '*' ? named : null;
}

function originForm(url: string): string {
  if (url.startsWith('/') || url === '*') return url;
  const path = url.replace(/^http:\/\/[^/?#]*/i, '');
  return path.startsWith('/') ? path : `/${path}`;
}

/** Names and values in turn, without those of one connection. */
function keptHeaders({ rawHeaders, headers }: IncomingMessage): string[] {
  const listed = (headers.connection ?? '')
    .toLowerCase()
    .split(',')
    .map((each) => each.trim());
  const dropped = (name: string) => HOP_BY_HOP.has(name) || (listed.includes(name) && name !== 'host');
  return rawHeaders.filter((_, at) => !dropped((rawHeaders[at - (at % 2)] ?? '').toLowerCase()));
}

function headText(answer: IncomingMessage, more: readonly string[]): string {
  const all = [...keptHeaders(answer), ...more];
  const lines = all.flatMap((name, at) => (at % 2 === 0 ? [`${name}: ${all[at + 1]}\r\n`] : []));
  return `HTTP/1.1 ${answer.statusCode} ${answer.statusMessage}\r\n${lines.join('')}\r\n`;
}

function refuse(incoming: IncomingMessage, response: ServerResponse): void {
  response.writeHead(403, { 'Content-Type': 'text/plain; charset=utf-8', Connection: 'close' });
  response.end(refusal(incoming));
  incoming.resume();
}

function refusal(incoming: IncomingMessage): string {
  const name = hostOf(incoming);
  return `The egress policy of this instance does not allow ${name ?? 'this host'}.${name === null ? '' : ` To allow it: berth egress NAME allow ${name}`}\n`;
}
