/**
 * Passes WebSockets to a guest. It sends the client's handshake to the guest, and joins the two connections once the
 * guest accepts; nothing that the client sends behind its handshake passes before that. A WebSocket by HTTP/2 is a
 * stream (RFC 8441): the guest gets a handshake of HTTP/1.1.
 */
import { randomBytes } from 'node:crypto';
import { type IncomingMessage, request as sendRequest } from 'node:http';
import type { Duplex } from 'node:stream';
import { contain } from '../../shared/contain.ts';
import {
  acceptanceOf,
  answerOf,
  headText,
  type OurAnswer,
  type OurHead,
  sendAnswer,
  unusable,
} from '../../shared/http-answer.ts';
import { asRecord } from '../../shared/http-request.ts';
import { joinStreams } from '../../shared/streams.ts';
import type { HttpLimits } from '../limits.ts';
import { type Exchange, guestProblem } from './exchange.ts';
import type { GuestPort, Way } from './guest-port.ts';
import { type Answering, fieldsForClient, fieldsForGuest, type Incoming } from './incoming.ts';
import { ambiguous, badGateway, type Refusal, render } from './refusal.ts';

const HANDSHAKE = ['Connection', 'Upgrade', 'Upgrade', 'websocket'];
const KEEP_ALIVE_MS = 60_000;

/** The client's side of a handshake. */
export interface Handshaking {
  /** The guest has accepted. Returns the client's stream. */
  accept(head: OurHead): Duplex;
  /** The guest has answered without an upgrade. */
  decline(answer: IncomingMessage, ours: OurAnswer): void;
}

export interface UpgradeContext {
  readonly port: GuestPort;
  readonly exchange: Exchange;
  readonly limits: HttpLimits;
  /** Aborts when the client disconnects. */
  readonly gone: AbortSignal;
}

export function isWebSocket(request: IncomingMessage): boolean {
  return request.headers.upgrade?.toLowerCase() === 'websocket';
}

/** @throws Refusal 400: bytes after the handshake could be another request for the guest */
export function checkHandshake({ method, checked }: Incoming): void {
  if (method !== 'GET' || checked.body !== 'none') throw ambiguous('an upgrade is a GET without a body');
}

/** Resolves when the connection is over. @throws DialError, Refusal */
export async function forwardUpgrade(
  incoming: Incoming,
  way: Way,
  side: Handshaking,
  context: UpgradeContext,
): Promise<void> {
  const { port, exchange, limits, gone } = context;
  const dialled = await way.dial();
  const over = Promise.withResolvers<void>();
  const guest_request = contain(
    sendRequest({
      ...{ method: 'GET', path: incoming.target, setHost: false, timeout: limits.idle_ms },
      createConnection: () => dialled,
      headers: fieldsForGuest(incoming.raw, incoming.client, [...HANDSHAKE, ...keyFor(incoming)]),
      maxHeaderSize: 2 * limits.header_bytes,
    }),
  );
  const stop = () => guest_request.destroy();
  /** Something was sent to the client. */
  let begun = false;
  let joined = false;
  // Nothing of ours may follow the guest's answer.
  const fail = (message: string) => (joined ? over.resolve() : over.reject(badGateway(message)));
  const refuse = (refusal: Refusal) => {
    over.reject(refusal);
    dialled.destroy();
  };
  gone.addEventListener('abort', stop);
  exchange.onGuestReset(() => {
    dialled.destroy();
    fail('The VM was restarted meanwhile.');
  });
  guest_request.on('error', (error) => fail(guestProblem(error, port.route.port)));
  guest_request.once('timeout', stop);
  dialled.once('close', () => {
    if (joined) return over.resolve();
    if (begun) exchange.end();
    fail(guestProblem(new Error('closed'), port.route.port));
  });
  guest_request.once('response', (answer) => {
    const ours = answerOf(answer, 'GET');
    if ('problem' in ours) return refuse(badGateway(unusable(ours)));
    begun = true;
    side.decline(answer, { ...ours, fields: fieldsForClient(ours.fields) });
    joined = true;
  });
  guest_request.once('upgrade', (answer, socket, head) => {
    const ours = acceptanceOf(answer, ['websocket']);
    if ('problem' in ours) return refuse(badGateway(unusable(ours)));
    begun = true;
    gone.removeEventListener('abort', stop);
    socket.setTimeout(0);
    socket.setKeepAlive(true, KEEP_ALIVE_MS);
    if (head.length > 0) socket.unshift(head);
    const client = side.accept({ ...ours, fields: fieldsForClient(ours.fields) });
    count(client, socket, port);
    joinStreams(client, socket);
    joined = true;
    if (gone.aborted) socket.destroy();
  });
  guest_request.end();
  await over.promise;
}

function count(client: Duplex, guest: Duplex, port: GuestPort): void {
  client.on('data', (part: Buffer) => {
    port.use.received_bytes += part.length;
  });
  guest.on('data', (part: Buffer) => {
    port.use.sent_bytes += part.length;
  });
}

/** A stream of HTTP/2 has no key. */
function keyFor({ request }: Incoming): string[] {
  return request.httpVersion === '2.0' ? ['Sec-WebSocket-Key', randomBytes(16).toString('base64')] : [];
}

/** Over a connection of HTTP/1.1, whose socket is ours after the upgrade event. */
export function onSocket(socket: Duplex, head: Buffer): Handshaking {
  return {
    accept(ours) {
      socket.write(headText(ours, HANDSHAKE), 'latin1');
      if (head.length > 0) socket.unshift(head);
      return socket;
    },
    decline(answer, ours) {
      socket.write(headText(ours, ['Connection', 'close']), 'latin1');
      answer.on('error', () => socket.destroy());
      answer.pipe(socket);
    },
  };
}

/** Over a stream of HTTP/2. */
export function onStream({ response }: Answering): Handshaking {
  const stream = (response as unknown as { stream: Duplex }).stream;
  return {
    accept({ fields }) {
      const record = asRecord(fields);
      delete record['sec-websocket-accept'];
      response.writeHead(200, record);
      response.flushHeaders();
      return stream;
    },
    decline(answer, ours) {
      sendAnswer(answer, response, ours);
    },
  };
}

export function refuseOnSocket(socket: Duplex, refusal: Refusal, accept: string | undefined): void {
  const { status, headers, body } = render(refusal, accept);
  const fields = Object.entries({ ...headers, connection: 'close' }).flat();
  socket.once('finish', () => socket.destroy());
  socket.end(`${headText({ status, reason: refusal.code, fields }, [])}${body}`);
}
