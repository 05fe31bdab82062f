/** Reading the body of an answer, whole or not at all. */
import { Readable } from 'node:stream';
import { assert } from '../lib/assert.ts';
import { WrongAnswerError } from './s3-failures.ts';

/** Into a buffer of its own. `length` undefined: as much as comes. @throws WrongAnswerError when it is another length */
export async function readBody(body: unknown, length: number | undefined): Promise<Buffer> {
  if (body === undefined && !length) return Buffer.alloc(0);
  assert(isStream(body), 'the body of an answer is a stream');
  const chunks: Uint8Array[] = [];
  let seen = 0;
  for await (const chunk of body) {
    seen += chunk.length;
    if (length !== undefined && seen > length) throw new WrongAnswerError('its answer was too long');
    chunks.push(chunk);
  }
  if (length !== undefined && seen < length) throw new WrongAnswerError('its answer was cut short');
  const whole = Buffer.allocUnsafeSlow(seen);
  let at = 0;
  for (const chunk of chunks) {
    whole.set(chunk, at);
    at += chunk.length;
  }
  return whole;
}

/** An answer that nobody wants ends with its connection. */
export function dropBody(body: unknown): void {
  if (body instanceof Readable) body.destroy();
}

function isStream(body: unknown): body is AsyncIterable<Uint8Array> {
  return typeof body === 'object' && body !== null && Symbol.asyncIterator in body;
}
