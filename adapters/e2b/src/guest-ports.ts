/**
 * `PORT-SANDBOX.domain`, as `getHost()` says it: each request gets a connection to that port of the guest, through Berth's port
 * forwarding. As in E2B, everybody who knows the name has access.
 */
import { request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import { Duplex } from 'node:stream';
import { WebSocket } from 'ws';
import { fieldsForGuest } from './guest-fields.ts';

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
  const socket = new WebSocket(url, { headers, perMessageDeflate: false, handshakeTimeout: HANDSHAKE_MS });
  const opened = new Promise<void>((resolve) => socket.once('open', resolve));
  const stream = new Duplex({
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
  });
  socket.on('message', (data: Buffer, is_binary) => {
    if (!is_binary && String(data) === END) stream.push(null);
    if (is_binary && !stream.push(data)) socket.pause();
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
  const connection = openForward(forward);
  const passed = httpRequest({
    method: request.method ?? 'GET',
    path: request.url ?? '/',
    // Each connection is of one sandbox and one request; it is never kept for another.
    headers: fieldsForGuest(request.rawHeaders, 'close'),
    createConnection: () => connection,
  });
  passed.on('response', (answer) => {
    response.writeHead(answer.statusCode ?? 502, answer.headers);
    answer.on('error', () => response.destroy());
    answer.pipe(response);
  });
  passed.on('error', () => {
    if (response.headersSent) return response.destroy();
    response.writeHead(502, { 'content-type': 'text/plain' });
    response.end('The sandbox does not run, or nothing listens on that port.\n');
  });
  response.on('close', () => {
    passed.destroy();
    connection.destroy();
  });
  request.pipe(passed);
}

/** An upgraded connection is passed on as it is: its head, then bytes in both directions. */
export function passUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer, forward: Forward): void {
  const guest = openForward(forward);
  const lines = [`${request.method} ${request.url} HTTP/1.1`];
  const fields = fieldsForGuest(request.rawHeaders, 'upgrade');
  for (let at = 0; at < fields.length; at += 2) lines.push(`${fields[at]}: ${fields[at + 1]}`);
  guest.write(`${lines.join('\r\n')}\r\n\r\n`);
  guest.write(head);
  guest.on('error', () => socket.destroy());
  guest.on('close', () => socket.destroy());
  socket.on('close', () => guest.destroy());
  guest.pipe(socket).pipe(guest);
}
