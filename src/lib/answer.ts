/** What the relays of HTTP ports and of the egress gate share: sending an answer that another server gave. */
import type { IncomingMessage, OutgoingMessage, ServerResponse } from 'node:http';
import { asRecord } from './http-request.ts';
import { passParts } from './pass-parts.ts';

/**
 * Sends the fields of an HTTP/1.1 message before its body. Node's flushHeaders() would write them as UTF-8, and so change all
 * bytes beyond ASCII.
 */
export function sendHead(message: OutgoingMessage): void {
  message.write(Buffer.alloc(0));
}

/**
 * Sends the body and trailers of `answer` after its head. An answer that is cut off cuts the response off, too, so that its client
 * sees it. @param trailersOf the pairs to pass on of `rawTrailers`
 */
export function passBody(
  answer: IncomingMessage,
  response: ServerResponse,
  trailersOf: (raw: readonly string[]) => readonly (readonly [string, string])[],
): void {
  answer.once('end', () => {
    const trailers = trailersOf(answer.rawTrailers);
    if (trailers.length > 0) response.addTrailers(asRecord(trailers.flat()) as Record<string, string>);
    response.end();
  });
  answer.once('error', () => response.destroy());
  answer.once('close', () => {
    if (!answer.complete) response.destroy();
  });
  passParts(answer, response, { end: false });
}
