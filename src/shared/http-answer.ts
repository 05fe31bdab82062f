/**
 * Relays HTTP responses of guests, and of servers that guests reach, to clients, for HTTP ports, the egress proxy and
 * the E2B adapter. The first half is pure: it checks and cleans a response's head, an interim response or trailers
 * (`answerOf`, `interimOf`, `trailersOf`). The second half sends the result.
 *
 * Invariant: Node can send every head and trailer that the first half returns, by HTTP/1.1 and by HTTP/2. Node would
 * throw for an invalid status, name or value, and for some repeated fields.
 */
import type { ClientRequest, IncomingMessage, OutgoingMessage, ServerResponse } from 'node:http';
import { constants, type Http2Stream } from 'node:http2';
import type { Duplex } from 'node:stream';
import { asRecord, HOP_BY_HOP, tokensOf, valuesOf } from './http-request.ts';
import { passParts } from './streams.ts';

/** As Node's client has it. Of HTTP/2: `:status`, and all fields. */
export interface ForeignHead {
  readonly statusCode?: number | undefined;
  readonly statusMessage?: string | undefined;
  /** Names and values by turns, as received. */
  readonly rawHeaders: readonly string[];
}

export interface OurHead {
  readonly status: number;
  readonly reason: string;
  /** Names and values by turns. */
  readonly fields: readonly string[];
}

export interface OurAnswer extends OurHead {
  readonly has_body: boolean;
}

export interface Acceptance extends OurHead {
  readonly protocol: string;
}

/** The client gets 502. The sentence's subject is the answer. */
export interface UnusableAnswer {
  readonly problem: string;
}

export function unusable({ problem }: UnusableAnswer): string {
  return `The answer cannot be passed on: ${problem}.`;
}

const WITHOUT_BODY: readonly number[] = [204, 205, 304];
/** Further ones of one answer are dropped: they cost the relay memory, and no back pressure holds them up. */
export const INTERIM_MAX = 16;

/** A final answer to a request with this method. */
export function answerOf(head: ForeignHead, method: string): OurAnswer | UnusableAnswer {
  const status = head.statusCode ?? 0;
  if (!Number.isInteger(status) || status < 200 || status > 599)
    return { problem: `its status is ${status}` };
  const lengths = valuesOf(head.rawHeaders, 'content-length');
  const codings = valuesOf(head.rawHeaders, 'transfer-encoding').map((each) => each.trim().toLowerCase());
  if (lengths.length > 1 || !lengths.every((each) => /^[0-9]{1,15}$/.test(each.trim())))
    return { problem: 'its Content-Length is not valid' };
  if (codings.length > 0 && (codings.join() !== 'chunked' || lengths.length > 0))
    return { problem: 'its Transfer-Encoding is not chunked alone' };
  const without = status === 204 || status === 205 ? LENGTH : NONE;
  return {
    status,
    reason: reasonOf(head),
    fields: endToEnd(head.rawHeaders, without),
    has_body: method !== 'HEAD' && !WITHOUT_BODY.includes(status),
  };
}

/** An answer that accepts one of the protocols that the client asked for, in lower case. */
export function acceptanceOf(head: ForeignHead, asked: readonly string[]): Acceptance | UnusableAnswer {
  if (head.statusCode !== 101) return { problem: `its status is ${head.statusCode}` };
  const [protocol, ...more] = tokensOf(head.rawHeaders, 'upgrade');
  if (protocol === undefined || more.length > 0 || !asked.includes(protocol))
    return { problem: 'it accepts another protocol than the one that was asked for' };
  return { protocol, status: 101, reason: reasonOf(head), fields: endToEnd(head.rawHeaders, LENGTH) };
}

/** An answer before the final one. null: it is dropped, as 101, and as 100 to a client that did not ask for it. */
export function interimOf(
  head: ForeignHead,
  { expects_continue }: { readonly expects_continue: boolean },
): Omit<OurHead, 'reason'> | null {
  const status = head.statusCode ?? 0;
  if (status === 100) return expects_continue ? { status, fields: [] } : null;
  if (!Number.isInteger(status) || status < 102 || status > 199) return null;
  return { status, fields: endToEnd(head.rawHeaders, LENGTH) };
}

/** Whether a request waits with its body for an answer of 100. */
export function expectsContinue(raw: readonly string[]): boolean {
  return tokensOf(raw, 'expect').includes('100-continue');
}

/** Also of requests: trailers carry no field that says how to read, whom to trust or whom to let in. Names and values by turns. */
export function trailersOf(raw: readonly string[]): string[] {
  return endToEnd(raw, NEVER_TRAILERS);
}

const NONE: ReadonlySet<string> = new Set();
const LENGTH: ReadonlySet<string> = new Set(['content-length']);
const NEVER_TRAILERS: ReadonlySet<string> = new Set([
  ...['host', 'content-length', 'trailer', 'authorization', 'cookie', 'set-cookie', 'content-encoding'],
  ...['content-type', 'content-range'],
]);
/** Those that may stand once: the first stays. Node's HTTP/2 throws for most of them. */
const ONCE: ReadonlySet<string> = new Set([
  ...['access-control-allow-credentials', 'access-control-allow-origin', 'access-control-max-age'],
  ...['access-control-request-method', 'age', 'authorization', 'content-disposition', 'content-length'],
  ...['content-location', 'content-md5', 'content-range', 'content-type', 'date', 'dnt', 'etag', 'expires'],
  ...['from', 'host', 'if-match', 'if-modified-since', 'if-none-match', 'if-range', 'if-unmodified-since'],
  ...['last-modified', 'location', 'max-forwards', 'range', 'referer', 'retry-after', 'sec-websocket-accept'],
  ...['sec-websocket-protocol', 'server', 'strict-transport-security', 'tk', 'upgrade-insecure-requests'],
  ...['user-agent', 'x-content-type-options'],
]);
/** Lists that Node's HTTP/2 sends as one field alone. */
const JOINED: ReadonlySet<string> = new Set(['content-encoding', 'content-language']);
const NAME = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
const NO_VALUE = /[^\t\x20-\x7e\x80-\xff]/;

/**
 * The fields that are not of one connection, without names and values that no sender may write. The announcement of trailers is left
 * out, too: Node takes it only beside chunks; the trailers themselves pass.
 */
function endToEnd(raw: readonly string[], without: ReadonlySet<string>): string[] {
  const named = new Set(tokensOf(raw, 'connection'));
  const seen = new Map<string, number>();
  const fields: string[] = [];
  for (let at = 0; at < raw.length; at += 2) {
    const [name = '', sent = ''] = [raw[at], raw[at + 1]];
    const lower = name.toLowerCase();
    if (HOP_BY_HOP.has(lower) || lower === 'trailer' || without.has(lower)) continue;
    if (named.has(lower) && lower !== 'content-length') continue;
    if (!NAME.test(name) || NO_VALUE.test(sent)) continue;
    const value = sent.replace(/^[\t ]+|[\t ]+$/g, '');
    const first = seen.get(lower);
    if (first !== undefined && ONCE.has(lower)) continue;
    if (first !== undefined && JOINED.has(lower)) {
      fields[first] += `, ${value}`;
      continue;
    }
    seen.set(lower, fields.push(name, value) - 1);
  }
  return fields;
}

/** HTTP/2 has none. */
function reasonOf({ statusMessage = '' }: ForeignHead): string {
  return NO_VALUE.test(statusMessage) ? '' : statusMessage;
}

/**
 * Sends the fields of an HTTP/1.1 message before its body. Node's flushHeaders() would write them as UTF-8, and so change all
 * bytes beyond ASCII.
 */
export function sendHead(message: OutgoingMessage): void {
  message.write(Buffer.alloc(0));
}

/** The head of an answer by HTTP/1.1 for a socket without a response, with the fields of this connection. For `latin1`. */
export function headText({ status, reason, fields }: OurHead, connection: readonly string[]): string {
  const all = [...fields, ...connection];
  const lines = all.flatMap((name, at) => (at % 2 === 0 ? [`${name}: ${all[at + 1]}\r\n`] : []));
  return `HTTP/1.1 ${status} ${reason}\r\n${lines.join('')}\r\n`;
}

/** Trailers of an HTTP/1.1 message, names and values by turns. */
export function addTrailers(message: OutgoingMessage, fields: readonly string[]): void {
  message.addTrailers(
    fields.flatMap((name, at): [string, string][] => (at % 2 === 0 ? [[name, fields[at + 1] ?? '']] : [])),
  );
}

/** Ends a response that is not whole. By HTTP/2, destroy() alone says that there was no error. */
export function cutOff(response: ServerResponse): void {
  const { stream } = response as { readonly stream?: Http2Stream };
  if (stream && !stream.destroyed) stream.close(constants.NGHTTP2_INTERNAL_ERROR);
  else response.destroy();
}

/**
 * Sends a server's answer: its head, as {@link answerOf} has made it, its body and its trailers. An answer that is cut off cuts the
 * response off, too, so that its client sees it. @param passed of trailers that may pass
 */
export function sendAnswer(
  answer: IncomingMessage,
  response: ServerResponse,
  { status, reason, fields, has_body }: OurAnswer,
  passed: (trailers: readonly string[]) => readonly string[] = (trailers) => trailers,
): void {
  if (response.headersSent || response.destroyed) return void answer.destroy();
  const by_http2 = response.req.httpVersion === '2.0';
  response.sendDate = false;
  if (by_http2) {
    response.writeHead(status, asRecord(fields));
    response.flushHeaders();
  } else {
    response.writeHead(status, reason, [...fields]);
    sendHead(response);
  }
  response.on('error', () => response.destroy());
  answer.on('error', () => cutOff(response));
  if (!has_body) {
    // What comes all the same is not read.
    answer.once('data', () => answer.destroy());
    response.end();
    return;
  }
  answer.once('end', () => {
    const trailers = passed(trailersOf(answer.rawTrailers));
    if (by_http2) response.addTrailers(asRecord(trailers) as Record<string, string>);
    else addTrailers(response, trailers);
    response.end();
  });
  answer.once('close', () => {
    if (!answer.complete) cutOff(response);
  });
  passParts(answer, response, { end: false });
}

export interface Handshake {
  /** The client's side, with what it has sent behind its request. */
  readonly socket: Duplex;
  readonly head: Buffer;
  /** In lower case. */
  readonly protocols: readonly string[];
  /** The fields of an answer that may pass. */
  readonly passed?: (fields: readonly string[]) => readonly string[];
  /** Answers the client, and ends its side. */
  readonly refuse: (problem: string) => void;
}

/**
 * Sends the answer to a request for an upgrade by HTTP/1.1, and joins both sides if it accepts. What followed the client's request passes
 * only then: for a server that declines, it could be another request.
 */
export function passHandshake(
  outgoing: ClientRequest,
  { socket, head, protocols, passed = (fields) => fields, refuse }: Handshake,
): void {
  let answered = false;
  const refuseOnce = (problem: string) => {
    if (answered) return;
    answered = true;
    outgoing.destroy();
    refuse(problem);
  };
  const send = ({ fields, ...rest }: OurHead, connection: readonly string[]) =>
    socket.write(headText({ ...rest, fields: passed(fields) }, connection), 'latin1');
  outgoing.on('upgrade', (answer, server, first) => {
    server.on('error', () => socket.destroy());
    const ours = acceptanceOf(answer, protocols);
    if ('problem' in ours) {
      server.destroy();
      return refuseOnce(unusable(ours));
    }
    server.once('close', () => socket.destroy());
    socket.once('close', () => server.destroy());
    send(ours, ['Connection', 'Upgrade', 'Upgrade', ours.protocol]);
    socket.write(first);
    server.write(head);
    passParts(server, socket);
    passParts(socket, server);
    answered = true;
  });
  outgoing.on('response', (answer) => {
    const ours = answerOf(answer, outgoing.method);
    if ('problem' in ours) return refuseOnce(unusable(ours));
    answer.on('error', () => socket.destroy());
    send(ours, ['Connection', 'close']);
    answer.pipe(socket);
    answered = true;
  });
  outgoing.on('error', (error) => refuseOnce(error.message));
  // After a fault of ours.
  outgoing.once('close', () => (answered ? undefined : socket.destroy()));
  socket.once('close', () => outgoing.destroy());
  outgoing.end();
}
