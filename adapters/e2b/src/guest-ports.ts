/**
 * Passes HTTP requests to ports of a guest, through Berth's port forwarding. The host name of a request names port and
 * sandbox, as E2B's `getHost()` returns it: `PORT-SANDBOX.domain`. As in E2B, everybody who knows the name has access.
 *
 * Each request gets a connection to the guest of its own. The guest gets no credential of Berth or E2B.
 */
import {
  type ClientRequest,
  request as httpRequest,
  type IncomingMessage,
  type ServerResponse,
  STATUS_CODES,
} from 'node:http';
import { Duplex } from 'node:stream';
import { WebSocket } from 'ws';
import { contain } from '../../../src/shared/contain.ts';
import { answerOf, headText, passHandshake, sendAnswer, unusable } from '../../../src/shared/http-answer.ts';
import { tokensOf } from '../../../src/shared/http-request.ts';

/** In these, E2B's programs send credentials; the others are of one connection. */
const WITHHELD = [
  'x-api-key',
  'x-access-token',
  'e2b-traffic-access-token',
  'proxy-authorization',
  'connection',
];
const BERTHS_TOKEN = /\bberth_[a-z]+_[0-9A-Za-z]{20}/;
const BERTHS_COOKIE = /^[\s=]*(?:__Host-|__Secure-)?berth[-_]/i;

/**
 * The header fields of a request that reach a guest's port: names and values in turn. A guest may be under anybody's
 * control, so credentials of Berth and E2B are left out. The caller's other fields reach the guest. Pure.
 * @param connection the value of the field Connection
 */
export function fieldsForGuest(raw: readonly string[], connection: 'close' | 'upgrade'): string[] {
  const fields: string[] = [];
  for (let at = 0; at + 1 < raw.length; at += 2) {
    const [name = '', value = ''] = [raw[at], raw[at + 1]];
    const lower = name.toLowerCase();
    if (WITHHELD.includes(lower) || (lower !== 'cookie' && BERTHS_TOKEN.test(value))) continue;
    if (lower !== 'cookie') {
      fields.push(name, value);
      continue;
    }
    const theirs = value.split(';').filter((each) => !BERTHS_COOKIE.test(each) && !BERTHS_TOKEN.test(each));
    if (theirs.length > 0) fields.push(name, theirs.join(';').trim());
  }
  return [...fields, 'Connection', connection];
}

const GUEST_HOST = /^(\d{1,5})-([0-9a-z]{26})\./;
const HANDSHAKE_MS = 15_000;
const BUFFER_BYTES = 256 * 1024;
/** Berth refuses larger messages. */
const MESSAGE_BYTES = 32 * 1024;
const END = 'end';
const OVER = 1000;

export interface GuestAddress {
  readonly port: number;
  readonly sandbox_id: string;
}

export function guestAddressOf(host: string | undefined): GuestAddress | null {
  const [, port, sandbox_id] = GUEST_HOST.exec(host ?? '') ?? [];
  return port === undefined || sandbox_id === undefined ? null : { port: Number(port), sandbox_id };
}

interface Forward {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
}

/** One connection to a port of a guest. */
function openForward({ url, headers }: Forward): Duplex {
  const socket = contain(
    new WebSocket(url, { headers, perMessageDeflate: false, handshakeTimeout: HANDSHAKE_MS }),
  );
  const opened = new Promise<void>((resolve) => socket.once('open', resolve));
  const stream = contain(
    new Duplex({
      read: () => socket.resume(),
      write: (chunk: Buffer, _encoding, done) => {
        void opened.then(() => sendAll(socket, chunk, done));
      },
      final: (done) => {
        void opened.then(() => socket.send(END, () => done()));
      },
      destroy: (error, done) => {
        // A paused one would not see that the other end closes, too.
        socket.resume();
        socket.close(OVER);
        done(error);
      },
    }),
  );
  socket.on('message', (data: Buffer, is_binary) => {
    if (stream.destroyed) return;
    if (is_binary ? !stream.push(data) : String(data) === END && !stream.push(null)) socket.pause();
  });
  socket.on('error', (error) => stream.destroy(error));
  socket.on('close', () => {
    if (!stream.readableEnded) stream.push(null);
  });
  return stream;
}

function sendAll(socket: WebSocket, chunk: Buffer, done: (error?: Error) => void): void {
  let last = Promise.resolve();
  for (let at = 0; at < chunk.length; at += MESSAGE_BYTES) {
    last = new Promise((resolve) =>
      socket.send(chunk.subarray(at, at + MESSAGE_BYTES), { binary: true }, () => resolve()),
    );
  }
  // A full buffer waits until it was sent.
  if (socket.bufferedAmount < BUFFER_BYTES) done();
  else void last.then(() => done());
}

export function passRequest(request: IncomingMessage, response: ServerResponse, forward: Forward): void {
  const passed = askGuest(request, response, forward, fieldsForGuest(request.rawHeaders, 'close'));
  let answered = false;
  const refuse = (said: string) => {
    if (answered) return;
    answered = true;
    passed.destroy();
    if (response.headersSent || response.destroyed) return response.destroy();
    response.writeHead(502, { 'content-type': 'text/plain' });
    response.end(`${said}\n`);
  };
  passed.on('response', (answer) => {
    const ours = answerOf(answer, request.method ?? '');
    if ('problem' in ours) return refuse(unusable(ours));
    sendAnswer(answer, response, ours);
    answered = true;
  });
  passed.on('error', () => refuse(NO_ANSWER));
  // Without an error after an upgrade that was not asked for, and after a fault of ours.
  passed.on('close', () => refuse(NO_ANSWER));
  request.pipe(passed);
}

export function passUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer, forward: Forward): void {
  const { 'content-length': length, 'transfer-encoding': coding } = request.headers;
  if (request.method !== 'GET' || (length ?? coding) !== undefined)
    return void refuseUpgrade(socket, 400, 'An upgrade is a GET without a body.');
  passHandshake(askGuest(request, socket, forward, fieldsForGuest(request.rawHeaders, 'upgrade')), {
    ...{ socket, head, protocols: tokensOf(request.rawHeaders, 'upgrade') },
    refuse: (problem) => refuseUpgrade(socket, 502, problem),
  });
}

export function refuseUpgrade(socket: Duplex, status: number, said: string): void {
  const fields = ['Content-Type', 'text/plain', 'Content-Length', String(Buffer.byteLength(said) + 1)];
  const head = { status, reason: STATUS_CODES[status] ?? '', fields };
  socket.once('finish', () => socket.destroy());
  socket.end(`${headText(head, ['Connection', 'close'])}${said}\n`);
}

const NO_ANSWER = 'The sandbox does not run, or nothing listens on that port.';

/** Each connection is of one sandbox and one request; it is never kept for another, and ends with the client's. */
function askGuest(
  { method = 'GET', url = '/' }: IncomingMessage,
  client: ServerResponse | Duplex,
  forward: Forward,
  headers: string[],
): ClientRequest {
  const connection = openForward(forward);
  const passed = contain(httpRequest({ method, path: url, headers, createConnection: () => connection }));
  client.once('close', () => {
    passed.destroy();
    connection.destroy();
  });
  return passed;
}
