/**
 * Relays one HTTP/1.1 request, or one WebSocket, from a guest to a server. Node's HTTP server parses the request, and
 * Node's client writes it anew, so the server gets exactly the request that the proxy has checked. Bodies are streamed,
 * with back-pressure.
 */
import {
  type Agent,
  type ClientRequest,
  createServer,
  type IncomingMessage,
  request,
  type Server,
  type ServerResponse,
  STATUS_CODES,
} from 'node:http';
import type { Socket } from 'node:net';
import { contain, endAfterFault } from '../shared/contain.ts';
import {
  addTrailers,
  answerOf,
  expectsContinue,
  INTERIM_MAX,
  interimOf,
  passHandshake,
  sendAnswer,
  sendHead,
  trailersOf,
  unusable,
} from '../shared/http-answer.ts';
import {
  AmbiguousRequest,
  type CheckedRequest,
  checkRequest,
  filterFields,
  framingOf,
  HOP_BY_HOP,
  tokensOf,
} from '../shared/http-request.ts';
import { passParts } from '../shared/streams.ts';
import type { Destination } from './address-handler.ts';

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
  return handledBy(contain(createServer(RELAY_OPTIONS)), handlers);
}

export function handledBy<Any extends Server>(server: Any, handlers: RelayHandlers): Any {
  const serve = (incoming: IncomingMessage, response: ServerResponse) =>
    void handlers.request(incoming, response).catch(endAfterFault(incoming.socket));
  server.on('request', serve);
  server.on('checkContinue', serve);
  server.on('upgrade', (incoming: IncomingMessage, socket: Socket, head: Buffer) => {
    socket.on('error', () => socket.destroy());
    void handlers.upgrade(incoming, socket, head).catch(endAfterFault(socket));
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

/** Of a request: names and values in turn, without those of one connection and those that the relay writes itself. */
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
  let failed = false;
  const refuse = (said: string) => {
    if (failed) return;
    failed = true;
    readRest();
    outgoing.destroy();
    if (response.headersSent) incoming.socket.destroy();
    else sendText(response, 502, said);
  };
  const fail = (error: Error) => {
    // As if it were not relayed: clients then send a request again that the server never saw.
    if (outgoing.reusedSocket) incoming.socket.destroy();
    refuse(error.message);
  };
  let answered = false;
  outgoing.on('error', (error) => {
    // An answer may be whole before the request is.
    if (answered) readRest();
    else fail(error);
  });
  // Without an error after an upgrade that was not asked for, and after a fault of ours.
  outgoing.once('close', () => {
    if (!answered) fail(new Error('the server closed the connection'));
  });
  passInterim(incoming, response, outgoing, passing);
  outgoing.once('response', (answer) => {
    const ours = answerOf(answer, incoming.method ?? '');
    if ('problem' in ours) return refuse(unusable(ours));
    sendAnswer(answer, response, { ...ours, fields: passed(ours.fields, passing) });
    answered = true;
  });
  response.once('close', () => {
    if (!response.writableFinished) outgoing.destroy();
  });
  if (checked.body === 'none') return void outgoing.end();
  // With 100-continue the body waits for the server's word.
  sendHead(outgoing);
  incoming.once('end', () => {
    if (checked.body === 'chunks') addTrailers(outgoing, trailersOf(incoming.rawTrailers));
    outgoing.end();
  });
  incoming.once('error', () => outgoing.destroy());
  stopBody = passParts(incoming, outgoing, { end: false });
}

function passInterim(
  incoming: IncomingMessage,
  response: ServerResponse,
  outgoing: ClientRequest,
  passing: Passing,
): void {
  if (incoming.httpVersion === '1.0') return;
  const expects_continue = expectsContinue(incoming.rawHeaders);
  let count = 0;
  outgoing.on('information', (head) => {
    const ours = interimOf(head, { expects_continue });
    if (!ours || response.headersSent || ++count > INTERIM_MAX) return;
    if (ours.status === 100) response.writeContinue();
    else response.writeInformation(ours.status, passed(ours.fields, passing));
  });
}

function asked(incoming: IncomingMessage, { agent, to, target, fields }: Passing, more: readonly string[]) {
  const own = fields.filter((_, at) => fields[at - (at % 2)]?.toLowerCase() !== 'content-length');
  return contain(
    request({
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
    }),
  );
}

/** Without the fields that must not reach a guest. */
function passed(fields: readonly string[], { passes }: Passing): readonly string[] {
  return passes ? filterFields(fields, passes) : fields;
}

const WEBSOCKET = ['Connection', 'Upgrade', 'Upgrade', 'websocket'];

/** What follows the handshake passes only once the server has accepted it. */
export function passUpgrade(incoming: IncomingMessage, socket: Socket, head: Buffer, passing: Passing): void {
  if (incoming.method !== 'GET' || passing.checked.body !== 'none')
    return void refuseGuest(socket, 400, 'An upgrade is a GET without a body.');
  const outgoing = asked(incoming, passing, WEBSOCKET);
  passHandshake(outgoing, {
    ...{ socket, head, protocols: ['websocket'] },
    passed: (fields) => passed(fields, passing),
    refuse: (problem) => refuseGuest(socket, 502, problem),
  });
}

/** An answer of the proxy itself; the connection ends with it. */
export function sendText(response: ServerResponse, status: number, said: string): void {
  // Without it Node would take that of an answer that could not be passed on.
  response.writeHead(status, STATUS_CODES[status], {
    'Content-Type': 'text/plain; charset=utf-8',
    Connection: 'close',
  });
  response.end(`${said}\n`);
}

export function refuseGuest(socket: Socket, status: number, said: string): void {
  if (!socket.writable) return void socket.destroy();
  const body = `${said}\n`;
  const head = `HTTP/1.1 ${status} Refused\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n`;
  socket.end(`${head}Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
  socket.destroySoon();
}
