/** Passes on the HTTP answer of another server to the client: for HTTP ports, the egress proxy and the E2B adapter. */
import type { ClientRequest, IncomingMessage, OutgoingMessage, ServerResponse } from 'node:http';
import { constants, type Http2Stream } from 'node:http2';
import type { Duplex } from 'node:stream';
import {
  acceptanceOf,
  answerOf,
  type OurAnswer,
  type OurHead,
  trailersOf,
  unusable,
} from './foreign-answer.ts';
import { asRecord } from './http-request.ts';
import { passParts } from './pass-parts.ts';

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
