/** Request bodies, sent piece by piece, and response bodies, read completely or not at all. */
import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import { assert } from '../shared/assert.ts';
import { release } from '../shared/release.ts';
import { WrongAnswerError } from './s3-requests.ts';

const PIECE_BYTES = 256 * 1024;

/**
 * A stream of `parts`, copied piece by piece into one buffer as the connection accepts them. Once the stream is destroyed,
 * nothing reads `parts`.
 */
export function bodyOf(parts: readonly Uint8Array[]): Readable {
  return new UploadBody(parts);
}

/**
 * Supports only `pipe`, which the AWS SDK uses. It reuses one buffer for all pieces: a stream's own pipe allocates one for
 * each, and a flush makes garbage faster than it is collected.
 */
class UploadBody extends Readable {
  readonly #parts: readonly Uint8Array[];

  constructor(parts: readonly Uint8Array[]) {
    super();
    this.#parts = parts;
  }

  override _read(): void {
    this.destroy(new Error('the body of a request is piped, not read'));
  }

  override pipe<T extends NodeJS.WritableStream>(target: T): T {
    // The request reports an error of the connection.
    this.#send(target).catch(() => undefined);
    return target;
  }

  async #send(target: NodeJS.WritableStream): Promise<void> {
    const piece = Buffer.allocUnsafeSlow(Math.min(PIECE_BYTES, Math.max(1, lengthOf(this.#parts))));
    let filled = 0;
    for (const part of this.#parts) {
      for (let at = 0; at < part.length; ) {
        const taken = part.subarray(at, at + piece.length - filled);
        piece.set(taken, filled);
        filled += taken.length;
        at += taken.length;
        if (filled < piece.length) continue;
        await written(target, piece);
        filled = 0;
        if (this.destroyed) return;
      }
    }
    if (filled > 0) await written(target, piece.subarray(0, filled));
    release(piece);
    if (!this.destroyed) target.end();
  }
}

/** Resolves when the system has taken the bytes. After the connection has ended it may never resolve. */
function written(target: NodeJS.WritableStream, bytes: Buffer): Promise<void> {
  return new Promise((resolve, reject) => {
    target.write(bytes, (error) => (error ? reject(error) : resolve()));
  });
}

/** The form of `x-amz-content-sha256`. */
export function sha256Of(parts: readonly Uint8Array[]): string {
  const hash = createHash('sha256');
  for (const part of parts) hash.update(part);
  return hash.digest('hex');
}

export function lengthOf(parts: readonly Uint8Array[]): number {
  return parts.reduce((sum, { length }) => sum + length, 0);
}

/** Reads a body into a new buffer. `length` undefined: until its end. @throws WrongAnswerError when the length differs */
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
    // A view of a larger buffer may share it with the next response's head.
    if (chunk.length === chunk.buffer.byteLength) release(chunk);
  }
  if (length !== undefined && seen < length) throw new WrongAnswerError('its answer was cut short');
  return seen === whole.length ? whole : Buffer.from(whole.subarray(0, seen));
}

function grown(bytes: Buffer, at_least: number): Buffer<ArrayBuffer> {
  const larger = Buffer.allocUnsafeSlow(Math.max(at_least, bytes.length * 2));
  larger.set(bytes);
  return larger;
}

/** Discards an unwanted response by closing its connection. */
export function dropBody(body: unknown): void {
  if (body instanceof Readable) body.destroy();
}

function isStream(body: unknown): body is AsyncIterable<Uint8Array> {
  return typeof body === 'object' && body !== null && Symbol.asyncIterator in body;
}
