/** Bodies of requests, sent piece by piece, and of answers, read whole or not at all. */
import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import { assert } from '../lib/assert.ts';
import { noteGarbage, release } from '../lib/release.ts';
import { WrongAnswerError } from './s3-failures.ts';

const PIECE_BYTES = 256 * 1024;

/**
 * The bytes of `parts` in copies of pieces of them, made as the connection takes them: whatever becomes of the connection,
 * nothing looks at `parts` once the stream is destroyed.
 */
export function bodyOf(parts: readonly Uint8Array[]): Readable {
  return Readable.from(pieces(parts), { objectMode: false, highWaterMark: PIECE_BYTES });
}

function* pieces(parts: readonly Uint8Array[]): Generator<Buffer> {
  for (const part of parts) {
    for (let at = 0; at < part.length; at += PIECE_BYTES) {
      const piece = Buffer.from(part.subarray(at, at + PIECE_BYTES));
      noteGarbage(piece.length);
      yield piece;
    }
  }
}

/** As S3 wants it in `x-amz-content-sha256`. */
export function sha256Of(parts: readonly Uint8Array[]): string {
  const hash = createHash('sha256');
  for (const part of parts) hash.update(part);
  return hash.digest('hex');
}

export function lengthOf(parts: readonly Uint8Array[]): number {
  return parts.reduce((sum, { length }) => sum + length, 0);
}

/** Into a buffer of its own. `length` undefined: as much as comes. @throws WrongAnswerError when it is another length */
export async function readBody(body: unknown, length: number | undefined): Promise<Buffer> {
  if (body === undefined && !length) return Buffer.alloc(0);
  assert(isStream(body), 'the body of an answer is a stream');
  let whole = Buffer.allocUnsafeSlow(length ?? PIECE_BYTES);
  let seen = 0;
  for await (const chunk of body) {
    if (length !== undefined && seen + chunk.length > length)
      throw new WrongAnswerError('its answer was too long');
    if (seen + chunk.length > whole.length) whole = grown(whole, seen + chunk.length);
    whole.set(chunk, seen);
    seen += chunk.length;
    // A part of a larger buffer may have the next answer's head behind it.
    if (chunk.length === chunk.buffer.byteLength) release(chunk);
    else noteGarbage(chunk.length);
  }
  if (length !== undefined && seen < length) throw new WrongAnswerError('its answer was cut short');
  return seen === whole.length ? whole : Buffer.from(whole.subarray(0, seen));
}

function grown(bytes: Buffer, at_least: number): Buffer<ArrayBuffer> {
  const larger = Buffer.allocUnsafeSlow(Math.max(at_least, bytes.length * 2));
  larger.set(bytes);
  return larger;
}

/** An answer that nobody wants ends with its connection. */
export function dropBody(body: unknown): void {
  if (body instanceof Readable) body.destroy();
}

function isStream(body: unknown): body is AsyncIterable<Uint8Array> {
  return typeof body === 'object' && body !== null && Symbol.asyncIterator in body;
}
