/**
 * One request by HTTP/1.1, or one WebSocket, from a guest to a server. Node's server reads it and Node's client writes it again, so
 * that the server sees exactly the request that was checked. Streams carry the bodies, with back pressure.
 */
import {
  type Agent,
  createServer,
  type IncomingMessage,
  request,
  type Server,
  type ServerResponse,
  STATUS_CODES,
} from 'node:http';
import type { Socket } from 'node:net';
import { passBody, sendHead } from '../../lib/answer.ts';
import {
  AmbiguousRequest,
  type CheckedRequest,
  checkRequest,
  framingOf,
  HOP_BY_HOP,
  tokensOf,
  trailersOf,
} from '../../lib/http-request.ts';
import { passParts } from '../../lib/pass-parts.ts';
import type { Destination } from './tls-way.ts';

const HEADERS_MS = 15_000;
const IDLE_MS = 60_000;
const ANSWER_HEADERS_MAX_BYTES = 64 * 1024;

/** As a connection's owner decides about its requests. */
export interface RelayHandlers {
  readonly request: (incoming: IncomingMessage, response: ServerResponse) => Promise<void>;
  readonly upgrade: (incoming: IncomingMessage, socket: Socket, head: Buffer) => Promise<void>;
  readonly connect: (incoming: IncomingMessage, socket: Socket) => void;
  /** What came is no request. */
  readonly unreadable: (socket: Socket) => void;
}

export const RELAY_OPTIONS = {
  headersTimeout: HEADERS_MS,
  // A body may take as long as its bytes keep coming.
  requestTimeout: 0,
  keepAliveTimeout: IDLE_MS,
  requireHostHeader: false,
  shouldUpgradeCallback: ({ headers }: IncomingMessage) => headers.upgrade?.toLowerCase() === 'websocket',
};

/** A server that gets its connections as events. */
export function relayServer(handlers: RelayHandlers): Server {
  return handledBy(createServer(RELAY_OPTIONS), handlers);
}

export function handledBy<Any extends Server>(server: Any, handlers: RelayHandlers): Any {
  const serve = (incoming: IncomingMessage, response: ServerResponse) =>
    void handlers.request(incoming, response).catch(() => incoming.socket.destroy());
  server.on('request', serve);
  server.on('checkContinue', serve);
  server.on('upgrade', (incoming: IncomingMessage, socket: Socket, head: Buffer) => {
    socket.on('error', () => socket.destroy());
    void handlers.upgrade(incoming, socket, head).catch(() => socket.destroy());
  });
  server.on('connect', (incoming: IncomingMessage, socket: Socket) => {
    socket.on('error', () => socket.destroy());
    handlers.connect(incoming, socket);
  });
  server.on('clientError', (_error: Error, socket: Socket) => {
    if (socket.writable) handlers.unreadable(socket);
    socket.destroySoon();
  });
  return server;
}

/** null: two programs could read it in two ways. */
export function readRequest({
  method = '',
  url = '',
  httpVersion,
  rawHeaders,
}: IncomingMessage): CheckedRequest | null {
  const head = { method, target: url, version: httpVersion, raw: rawHeaders, authority: null };
  try {
    return checkRequest(head);
  } catch (error) {
    if (error instanceof AmbiguousRequest) return null;
    throw error;
  }
}

/** The port in Host, or else that of the scheme. */
export function portOf({ host }: CheckedRequest, usual: number): number {
  return Number(/:([0-9]+)$/.exec(host)?.[1] ?? usual);
}

/** The target without scheme and host; null: it has another scheme. */
export function originForm(target: string, scheme: 'http' | 'https'): string | null {
  if (target.startsWith('/') || target === '*') return target;
  if (!target.toLowerCase().startsWith(`${scheme}://`)) return null;
  const path = target.slice(scheme.length + 3).replace(/^[^/?#]*/, '');
  return path.startsWith('/') ? path : `/${path}`;
}

/** Names and values in turn, without those of one connection and those that the relay writes itself. */
export function keptFields(raw: readonly string[]): string[] {
  const named = new Set(tokensOf(raw, 'connection'));
  const fields: string[] = [];
  for (let at = 0; at < raw.length; at += 2) {
    const [name = '', value = ''] = [raw[at], raw[at + 1]];
    const lower = name.toLowerCase();
    // The trailers themselves pass. Node takes their announcement only with chunks.
    if (HOP_BY_HOP.has(lower) || lower === 'trailer') continue;
    if (named.has(lower) && lower !== 'host' && lower !== 'content-length') continue;
    fields.push(name, value);
  }
  return fields;
}

export interface Passing {
  readonly agent: Agent;
  readonly to: Destination;
  readonly target: string;
  /** Of the request, without its framing. */
  readonly fields: readonly string[];
  readonly checked: CheckedRequest;
  /** Whether a field of the answer passes; its name in lower case. */
  readonly passes?: (name: string) => boolean;
}

export function passRequest(incoming: IncomingMessage, response: ServerResponse, passing: Passing): void {
  const { checked } = passing;
  const outgoing = asked(incoming, passing, framingOf(incoming.method ?? '', incoming.rawHeaders, checked));
  let stopBody = () => {};
  const readRest = () => {
    stopBody();
    incoming.resume();
  };
  const fail = (error: Error) => {
    readRest();
    outgoing.destroy();
    // As if it were not relayed: clients then send a request again that the server never saw.
    if (response.headersSent || outgoing.reusedSocket) incoming.socket.destroy();
    else sendText(response, 502, error.message);
  };
  let answered = false;
  outgoing.on('error', (error) => {
    // An answer may be whole before the request is.
    if (answered) readRest();
    else fail(error);
  });
  outgoing.once('close', () => {
    if (!answered && !response.headersSent) fail(new Error('the server closed the connection'));
  });
  outgoing.on('continue', () => response.writeContinue());
  outgoing.on('information', ({ statusCode, headers }) => {
    if (statusCode === 103) passHints(response, headers as Record<string, string>);
  });
  outgoing.once('response', (answer) => {
    answered = true;
    try {
      sendAnswer(answer, response, passing);
    } catch {
      answer.destroy();
      fail(new Error('the server sent an answer that cannot be passed on'));
    }
  });
  response.once('close', () => {
    if (!response.writableFinished) outgoing.destroy();
  });
  if (checked.body === 'none') return void outgoing.end();
  // With 100-continue the body waits for the server's word.
  sendHead(outgoing);
  incoming.once('end', () => {
    const trailers = checked.body === 'chunks' ? trailersOf(incoming.rawTrailers) : [];
    if (trailers.length > 0) outgoing.addTrailers(trailers);
    outgoing.end();
  });
  incoming.once('error', () => outgoing.destroy());
  stopBody = passParts(incoming, outgoing, { end: false });
}

/** Clients do not depend on them, and Node throws for fields that it cannot read. */
function passHints(response: ServerResponse, headers: Record<string, string>): void {
  try {
    response.writeEarlyHints(headers);
  } catch {
    // They are left out.
  }
}

function asked(incoming: IncomingMessage, { agent, to, target, fields }: Passing, more: readonly string[]) {
  const own = fields.filter((_, at) => fields[at - (at % 2)]?.toLowerCase() !== 'content-length');
  return request({
    agent,
    host: to.address,
    port: to.port,
    method: incoming.method ?? 'GET',
    path: target,
    headers: [
      ...own,
      ...(tokensOf(incoming.rawHeaders, 'te').includes('trailers') ? ['TE', 'trailers'] : []),
      ...more,
    ],
    setHost: false,
    maxHeaderSize: ANSWER_HEADERS_MAX_BYTES,
  });
}

function sendAnswer(answer: IncomingMessage, response: ServerResponse, { passes }: Passing): void {
  response.sendDate = false;
  response.writeHead(answer.statusCode ?? 502, answer.statusMessage, answerFields(answer, passes));
  sendHead(response);
  passBody(answer, response, trailersOf);
}

function answerFields({ rawHeaders }: IncomingMessage, passes: Passing['passes']): string[] {
  const kept = keptFields(rawHeaders);
  return passes ? kept.filter((_, at) => passes((kept[at - (at % 2)] ?? '').toLowerCase())) : kept;
}

const WEBSOCKET = ['Connection', 'Upgrade', 'Upgrade', 'websocket'];

/** What follows the handshake passes only once the server has accepted it. */
export function passUpgrade(incoming: IncomingMessage, socket: Socket, head: Buffer, passing: Passing): void {
  if (incoming.method !== 'GET' || passing.checked.body !== 'none')
    return void refuseOnSocket(socket, 400, 'An upgrade is a GET without a body.');
  const outgoing = asked(incoming, passing, WEBSOCKET);
  socket.once('close', () => outgoing.destroy());
  outgoing.on('upgrade', (answer, outside, first) => {
    outside.on('error', () => socket.destroy());
    outside.once('close', () => socket.destroy());
    socket.once('close', () => outside.destroy());
    socket.write(headText(answer, passing.passes, WEBSOCKET), 'latin1');
    socket.write(first);
    outside.write(head);
    passParts(outside, socket);
    passParts(socket, outside);
  });
  outgoing.on('response', (answer) => {
    socket.write(headText(answer, passing.passes, ['Connection', 'close']), 'latin1');
    answer.on('error', () => socket.destroy());
    answer.pipe(socket);
  });
  outgoing.on('error', (error) => refuseOnSocket(socket, 502, error.message));
  outgoing.end();
}

function headText(answer: IncomingMessage, passes: Passing['passes'], more: readonly string[]): string {
  const all = [...answerFields(answer, passes), ...more];
  const lines = all.flatMap((name, at) => (at % 2 === 0 ? [`${name}: ${all[at + 1]}\r\n`] : []));
  return `HTTP/1.1 ${answer.statusCode} ${answer.statusMessage}\r\n${lines.join('')}\r\n`;
}

/** An answer of the gate itself; the connection ends with it. */
export function sendText(response: ServerResponse, status: number, said: string): void {
  // Without it Node would take that of an answer that could not be passed on.
  response.writeHead(status, STATUS_CODES[status], {
    'Content-Type': 'text/plain; charset=utf-8',
    Connection: 'close',
  });
  response.end(`${said}\n`);
}

export function refuseOnSocket(socket: Socket, status: number, said: string): void {
  if (!socket.writable) return void socket.destroy();
  const body = `${said}\n`;
  const head = `HTTP/1.1 ${status} Refused\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n`;
  socket.end(`${head}Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
  socket.destroySoon();
}
