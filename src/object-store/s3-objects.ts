/**
 * Writes and reads single objects of a bucket. One PUT writes an object, completely or not at all; its signature covers
 * the bytes, so the store refuses a body that changed in transit. A read returns exactly the requested bytes, or fails.
 */
import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import {
  GetObjectCommand,
  type GetObjectCommandOutput,
  HeadObjectCommand,
  PutObjectCommand,
  type S3Client,
} from '@aws-sdk/client-s3';
import { assert } from '../shared/assert.ts';
import { release } from '../shared/release.ts';
import { type ByteRange, isObjectKey, ObjectRangeError } from './object-store.ts';
import { type S3Requests, WrongAnswerError } from './s3-requests.ts';
import { type ObjectRequest, type SignedRequest, sendAs, signOver } from './sign-request.ts';

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
function sha256Of(parts: readonly Uint8Array[]): string {
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
function dropBody(body: unknown): void {
  if (body instanceof Readable) body.destroy();
}

function isStream(body: unknown): body is AsyncIterable<Uint8Array> {
  return typeof body === 'object' && body !== null && Symbol.asyncIterator in body;
}

export interface S3ObjectsOptions {
  readonly client: S3Client;
  readonly bucket: string;
  readonly requests: S3Requests;
  /** Absent: the client signs with its own credentials. */
  readonly permits?: Permits;
}

/** Requests that somebody with the credentials has signed. */
export interface Permits {
  get(request: ObjectRequest, signal: AbortSignal): Promise<SignedRequest>;
  /** A request for `key` has failed, so that it should be signed anew. */
  forget(key: string): void;
}

export interface PutOptions {
  readonly create_only: boolean;
  readonly attempts?: number;
}

type Command = PutObjectCommand | GetObjectCommand | HeadObjectCommand;

export class S3Objects {
  readonly #options: S3ObjectsOptions;

  constructor(options: S3ObjectsOptions) {
    this.#options = options;
  }

  async put(
    key: string,
    body: readonly Uint8Array[],
    { create_only, attempts }: PutOptions,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    assertKey(key);
    const [sha256, size_bytes] = [sha256Of(body), lengthOf(body)];
    const { client, requests } = this.#options;
    const send = async (stop: AbortSignal) => {
      const stream = bodyOf(body);
      const command = new PutObjectCommand({
        ...this.#at(key),
        Body: stream,
        ContentLength: size_bytes,
        ContentType: 'application/octet-stream',
        ...(create_only ? { IfNoneMatch: '*' } : {}),
      });
      signOver(command, sha256);
      try {
        await this.#sign(command, { method: 'PUT', key, size_bytes, sha256 }, stop);
        return await client.send(command, { abortSignal: stop });
      } finally {
        stream.destroy();
      }
    };
    await requests.perform(key, send, signal, attempts);
  }

  async get(key: string, range: ByteRange | undefined, signal: AbortSignal | undefined): Promise<Buffer> {
    assertKey(key);
    if (range) assert(range.offset >= 0 && range.length >= 0, 'a byte range is not negative');
    if (range?.length === 0) return this.#getNothing(key, range.offset, signal);
    const send = (stop: AbortSignal) =>
      range ? this.#getRange(key, range, stop) : this.#getWhole(key, stop);
    return this.#options.requests.perform(key, send, signal);
  }

  async size(key: string, signal: AbortSignal | undefined): Promise<number> {
    assertKey(key);
    const { client, requests } = this.#options;
    const send = async (stop: AbortSignal) => {
      const command = new HeadObjectCommand(this.#at(key));
      await this.#sign(command, { method: 'HEAD', key }, stop);
      const { ContentLength } = await client.send(command, { abortSignal: stop }).catch(this.#failed(key));
      if (ContentLength === undefined) throw new WrongAnswerError('the response has no size');
      return ContentLength;
    };
    return requests.perform(key, send, signal);
  }

  async #getWhole(key: string, signal: AbortSignal): Promise<Buffer> {
    const command = new GetObjectCommand(this.#at(key));
    const { Body, ContentLength } = await this.#get(command, key, signal);
    return readBody(Body, ContentLength);
  }

  async #getRange(key: string, { offset, length }: ByteRange, signal: AbortSignal): Promise<Buffer> {
    const last = offset + length - 1;
    const command = new GetObjectCommand({ ...this.#at(key), Range: `bytes=${offset}-${last}` });
    const { Body, ContentRange } = await this.#get(command, key, signal);
    const [, from, to, size] = /^bytes (\d+)-(\d+)\/(\d+)$/.exec(ContentRange ?? '')?.map(Number) ?? [];
    if (size !== undefined && size <= last) {
      dropBody(Body);
      throw new ObjectRangeError(`${key}: ${length} bytes at ${offset} end after its ${size} bytes`);
    }
    if (from !== offset || to !== last) {
      dropBody(Body);
      throw new WrongAnswerError('the response has another range than the request');
    }
    return readBody(Body, length);
  }

  /** HTTP has no empty ranges. */
  async #getNothing(key: string, offset: number, signal: AbortSignal | undefined): Promise<Buffer> {
    const size_bytes = await this.size(key, signal);
    if (offset > size_bytes)
      throw new ObjectRangeError(`${key}: offset ${offset} is after its ${size_bytes} bytes`);
    return Buffer.alloc(0);
  }

  async #get(command: GetObjectCommand, key: string, signal: AbortSignal): Promise<GetObjectCommandOutput> {
    await this.#sign(command, { method: 'GET', key }, signal);
    return this.#options.client.send(command, { abortSignal: signal }).catch(this.#failed(key));
  }

  async #sign(command: Command, request: ObjectRequest, signal: AbortSignal): Promise<void> {
    const { permits } = this.#options;
    if (permits) sendAs(command, await permits.get(request, signal));
  }

  #failed(key: string): (error: unknown) => never {
    return (error) => {
      this.#options.permits?.forget(key);
      throw error;
    };
  }

  #at(key: string): { Bucket: string; Key: string } {
    return { Bucket: this.#options.bucket, Key: key };
  }
}

export function assertKey(key: string): void {
  assert(isObjectKey(key), `not an object key: ${JSON.stringify(key)}`);
}
