/**
 * Writes and reads single objects of a bucket. One PUT writes an object, completely or not at all; its signature covers the bytes, so
 * the store refuses a body that changed in transit. A read returns the requested length.
 */
import {
  GetObjectCommand,
  type GetObjectCommandOutput,
  HeadObjectCommand,
  PutObjectCommand,
  type S3Client,
} from '@aws-sdk/client-s3';
import { assert } from '../shared/assert.ts';
import { type ByteRange, isObjectKey, ObjectRangeError } from './object-store.ts';
import { bodyOf, dropBody, lengthOf, readBody, sha256Of } from './s3-body.ts';
import { type S3Requests, WrongAnswerError } from './s3-requests.ts';
import { type ObjectRequest, type SignedRequest, sendAs, signOver } from './sign-request.ts';

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
