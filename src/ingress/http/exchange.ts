/**
 * Passes one HTTP request to a guest and the response back (`forward`). An {@link Exchange} stands for such a pair, or
 * for one upgraded connection, which can be ended on both sides at once.
 *
 * Node's streams carry the bodies in both directions with back-pressure. Nothing of the request's body is read before
 * the connection to the guest is there, so a failed dial can be repeated.
 */
import { type ClientRequest, type IncomingMessage, request as sendRequest } from 'node:http';
import { contain } from '../../shared/contain.ts';
import {
  addTrailers,
  answerOf,
  cutOff,
  expectsContinue,
  type OurAnswer,
  sendAnswer,
  trailersOf,
  unusable,
} from '../../shared/http-answer.ts';
import { framingOf } from '../../shared/http-request.ts';
import { passParts } from '../../shared/streams.ts';
import type { HttpLimits } from '../limits.ts';
import { DialError, type GuestPort, type Way } from './guest-port.ts';
import {
  type Answering,
  fieldsForClient,
  fieldsForGuest,
  type Incoming,
  passedTrailers,
} from './incoming.ts';
import type { Asking } from './permission.ts';
import { badGateway, type Refusal } from './refusal.ts';

export class Exchange {
  readonly asking: Asking;
  /** When its permission was last confirmed. */
  confirmed_ms = performance.now();
  readonly #cut: () => void;
  #on_reset: (() => void) | null = null;

  /** `cut` ends it on both sides at once. */
  constructor(asking: Asking, cut: () => void) {
    this.asking = asking;
    this.#cut = cut;
  }

  end(): void {
    this.#cut();
  }

  /** For a connection that is made now: `then` runs when the guest has lost it. */
  onGuestReset(then: () => void): void {
    this.#on_reset = then;
  }

  guestReset(): void {
    this.#on_reset?.();
  }
}

/** Resolves when the exchange is over. @throws DialError: nothing was sent; Refusal: nothing was answered */
export function forward(
  incoming: Answering,
  way: Way,
  { port, exchange, limits }: { port: GuestPort; exchange: Exchange; limits: HttpLimits },
): Promise<void> {
  const { request, response, method, target } = incoming;
  const over = Promise.withResolvers<void>();
  const guest_request = contain(
    sendRequest({
      ...{ agent: way.agent, method, path: target, setHost: false, timeout: limits.idle_ms },
      headers: fieldsForGuest(
        incoming.raw,
        incoming.client,
        framingOf(method, incoming.raw, incoming.checked),
      ),
      maxHeaderSize: 2 * limits.header_bytes,
    }),
  );
  /** Or never sent. */
  let answered = false;
  /** The request goes another way. */
  let lost = false;
  let stopBody = () => {};
  const readRest = () => {
    stopBody();
    request.resume();
  };
  const fail = (refusal: Refusal) => {
    if (lost) return;
    readRest();
    guest_request.destroy();
    if (response.headersSent) cutOff(response);
    over.reject(refusal);
  };
  exchange.onGuestReset(() => fail(badGateway('The VM was restarted meanwhile.')));
  response.once('close', () => {
    // Node ends a response by HTTP/2 itself when its stream is cancelled.
    if (!response.writableEnded || !response.writableFinished) guest_request.destroy();
    over.resolve();
  });
  guest_request.once('socket', () => {
    stopBody = sendBody(incoming, guest_request, port);
  });
  // Other interim answers are dropped.
  guest_request.once('continue', () => {
    if (expectsContinue(incoming.raw) && !response.headersSent) response.writeContinue();
  });
  guest_request.once('timeout', () => fail(badGateway('The VM did not send a byte for ten minutes.')));
  guest_request.on('error', (error) => {
    if (error instanceof DialError) {
      // The body stays unread, for the next way.
      lost = true;
      over.reject(error);
      return;
    }
    // The response has begun, or is whole: what is still sent of the request is read to its end.
    if (response.headersSent) readRest();
    else fail(badGateway(guestProblem(error, port.route.port)));
  });
  // Without an error after an upgrade that was not asked for, and after a fault of ours.
  guest_request.once('close', () => {
    if (!answered) fail(badGateway(guestProblem(new Error('closed'), port.route.port)));
  });
  guest_request.once('response', (answer) => {
    const ours = answerOf(answer, method);
    if ('problem' in ours) return fail(badGateway(unusable(ours)));
    passAnswer(incoming, answer, ours, port);
    answered = true;
  });
  return over.promise;
}

/** @returns stops sending it */
function sendBody(
  { request, checked: { body } }: Incoming,
  guest_request: ClientRequest,
  port: GuestPort,
): () => void {
  if (body === 'none') {
    guest_request.end();
    return () => {};
  }
  request.on('data', (part: Buffer) => {
    port.use.received_bytes += part.length;
  });
  request.once('end', () => {
    // By HTTP/2 a body that its client cancels ends, too. The guest must see it cut.
    if (request.aborted) return void guest_request.destroy();
    if (body === 'chunks') {
      addTrailers(guest_request, passedTrailers(trailersOf(request.rawTrailers)));
    }
    guest_request.end();
  });
  return passParts(request, guest_request, { end: false });
}

function passAnswer(
  { response }: Answering,
  answer: IncomingMessage,
  ours: OurAnswer,
  port: GuestPort,
): void {
  // What of the body has come with the fields goes into the same write.
  const { socket } = response;
  if (response.req.httpVersion !== '2.0') {
    socket?.cork();
    setImmediate(() => socket?.uncork());
  }
  answer.on('data', (part: Buffer) => {
    port.use.sent_bytes += part.length;
  });
  sendAnswer(answer, response, { ...ours, fields: fieldsForClient(ours.fields) }, passedTrailers);
}

export function guestProblem(error: Error, port: number): string {
  const code = (error as NodeJS.ErrnoException).code ?? '';
  if (code === 'HPE_HEADER_OVERFLOW') return `The response headers of port ${port} in the VM are too large.`;
  if (code.startsWith('HPE_')) return `What listens at port ${port} in the VM does not speak HTTP.`;
  return `The program at port ${port} in the VM closed the connection without an answer.`;
}
