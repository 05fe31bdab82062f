/**
 * An object store in a bucket of S3 or a compatible service.
 *
 * Invariants:
 * - One PUT writes an object, completely or not at all. Its signature covers the bytes, so the store refuses a body that
 *   changed in transit. `If-None-Match: *` makes it create-only. Multipart uploads are not used, because some stores (Ceph)
 *   do not support the condition there: large data is cut into objects (docs/adr/0016-s3.md).
 * - The first `check` detects a store that ignores the condition. Each PUT is then preceded by a HEAD. Two concurrent
 *   writers of one key could miss each other in between, but segment keys have a random attempt number, so there are none.
 * - A read returns the requested length. Callers verify the content.
 */
import { randomBytes } from 'node:crypto';
import {
  DeleteObjectCommand,
  GetObjectCommand,
  HeadBucketCommand,
  HeadObjectCommand,
  ListObjectsV2Command,
  PutObjectCommand,
  S3Client,
} from '@aws-sdk/client-s3';
import { assert } from '../lib/assert.ts';
import type { Log } from '../lib/log.ts';
import {
  type ByteRange,
  isObjectKey,
  type ObjectEntry,
  ObjectExistsError,
  ObjectNotFoundError,
  ObjectRangeError,
  type ObjectStore,
  type ObjectStoreUnavailableError,
} from './object-store.ts';
import { bodyOf, dropBody, lengthOf, readBody, sha256Of } from './s3-body.ts';
import { WrongAnswerError } from './s3-failures.ts';
import { NoConditionsError, PATIENCE, type S3Patience, S3Requests } from './s3-requests.ts';

export interface S3Settings {
  readonly bucket: string;
  /** Null: Amazon's endpoint of the region. */
  readonly endpoint: string | null;
  readonly region: string;
  /** Null, with the secret null too: the SDK's default chain finds the credentials (profiles, roles, …). */
  readonly access_key_id: string | null;
  readonly secret_access_key: string | null;
  readonly session_token: string | null;
}

export interface S3StoreOptions {
  readonly log?: Log;
  readonly patience?: Partial<S3Patience>;
  /** Keys per page of a listing. */
  readonly page_keys?: number;
}

/** A check is frequent, so its time limit is short. */
const CHECK_TIMEOUT_MS = 8_000;
const CHECK_ATTEMPTS = 2;

export class S3Store implements ObjectStore {
  readonly description: string;
  readonly #bucket: string;
  readonly #client: S3Client;
  readonly #requests: S3Requests;
  readonly #log: Log | undefined;
  readonly #page_keys: number;
  readonly #probe_key = `probe/${randomBytes(12).toString('hex')}`;
  /** Whether the store honours `If-None-Match: *`. */
  #conditions: 'not known' | 'kept' | 'ignored' = 'not known';

  /** Sends no request; `check` tells whether the bucket can be used. */
  constructor(settings: S3Settings, { log, patience, page_keys = 1_000 }: S3StoreOptions = {}) {
    const { bucket, endpoint, region } = settings;
    const bounds = { ...PATIENCE, ...patience };
    this.description = `s3 bucket ${bucket} at ${endpoint ?? `Amazon, ${region}`}`;
    this.#bucket = bucket;
    this.#log = log;
    this.#page_keys = page_keys;
    this.#requests = new S3Requests(this.description, bounds);
    this.#client = clientFor(settings, bounds);
  }

  async put(key: string, body: readonly Uint8Array[], signal?: AbortSignal): Promise<void> {
    assertKey(key);
    if (this.#conditions === 'ignored') return this.#putUnlessThere(key, body, signal);
    try {
      await this.#put(key, body, { create_only: true }, signal);
    } catch (error) {
      if (!(error instanceof NoConditionsError)) throw error;
      this.#conditionsAreIgnored(error.message);
      await this.#putUnlessThere(key, body, signal);
    }
  }

  async get(key: string, range?: ByteRange, signal?: AbortSignal): Promise<Buffer> {
    assertKey(key);
    if (!range) return this.#find(key, (stop) => this.#getWhole(key, stop), signal);
    assert(range.offset >= 0 && range.length >= 0, 'a byte range is not negative');
    if (range.length === 0) return this.#getNothing(key, range.offset, signal);
    return this.#find(key, (stop) => this.#getRange(key, range, stop), signal);
  }

  async size(key: string, signal?: AbortSignal): Promise<number> {
    assertKey(key);
    return this.#find(key, (stop) => this.#head(key, stop), signal);
  }

  async *list(prefix: string): AsyncIterable<ObjectEntry> {
    assert(
      prefix === '' || (prefix.endsWith('/') && isObjectKey(prefix.slice(0, -1))),
      'a prefix is a whole path',
    );
    for (let next: string | undefined; ; ) {
      const page = await this.#listPage(prefix, next);
      for (const { Key: key = '', Size: size_bytes = 0, LastModified } of page.Contents ?? []) {
        // Without a date the object counts as new, so that no task deletes it as old.
        if (isObjectKey(key)) yield { key, size_bytes, modified_at: LastModified ?? new Date() };
      }
      if (!page.IsTruncated) return;
      next = page.NextContinuationToken;
      assert(next !== undefined, 'a listing that is cut says where it goes on');
    }
  }

  async delete(key: string, signal?: AbortSignal): Promise<void> {
    assertKey(key);
    await this.#delete(key, signal);
  }

  async check(): Promise<void> {
    const late = AbortSignal.timeout(CHECK_TIMEOUT_MS);
    try {
      await this.#check(late);
    } catch (error) {
      if (late.aborted) throw this.#requests.unavailable(`no answer within ${CHECK_TIMEOUT_MS} ms`);
      throw error;
    }
  }

  /** Closes idle connections. */
  close(): void {
    this.#client.destroy();
  }

  async #check(signal: AbortSignal): Promise<void> {
    const key = this.#probe_key;
    const [first, second] = [randomBytes(64), randomBytes(64)];
    await this.#delete(key, signal, CHECK_ATTEMPTS); // left by an interrupted check
    await this.#put(key, [first], { create_only: false, attempts: CHECK_ATTEMPTS }, signal);
    try {
      const read = await this.get(key, undefined, signal);
      if (!read.equals(first)) throw this.#requests.unavailable('a probe object was read back changed');
      if (this.#conditions === 'not known') await this.#learnConditions(key, second, signal);
    } finally {
      await this.#delete(key, signal, CHECK_ATTEMPTS).catch(() => undefined); // the next check retries it
    }
  }

  /** `key` exists, so the store must refuse a second PUT. */
  async #learnConditions(key: string, body: Buffer, signal: AbortSignal): Promise<void> {
    try {
      await this.#put(key, [body], { create_only: true, attempts: CHECK_ATTEMPTS }, signal);
      this.#conditionsAreIgnored('it wrote a key that was taken');
    } catch (error) {
      if (error instanceof ObjectExistsError) this.#conditions = 'kept';
      else if (error instanceof NoConditionsError) this.#conditionsAreIgnored(error.message);
      else throw error;
    }
  }

  #conditionsAreIgnored(how: string): void {
    if (this.#conditions !== 'ignored') {
      this.#log?.warn(
        { store: this.description, how },
        'the object store has no create-only writes; it is asked whether a key is free before each write, and keys are unique anyway',
      );
    }
    this.#conditions = 'ignored';
  }

  async #putUnlessThere(
    key: string,
    body: readonly Uint8Array[],
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const there = await this.size(key, signal).then(
      () => true,
      (error: unknown) => {
        if (error instanceof ObjectNotFoundError) return false;
        throw error;
      },
    );
    if (there) throw new ObjectExistsError(`${key} already exists`);
    await this.#put(key, body, { create_only: false }, signal);
  }

  async #put(
    key: string,
    body: readonly Uint8Array[],
    { create_only, attempts }: { readonly create_only: boolean; readonly attempts?: number },
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const [sha256, length] = [sha256Of(body), lengthOf(body)];
    const send = async (stop: AbortSignal) => {
      const stream = bodyOf(body);
      const command = new PutObjectCommand({
        ...this.#at(key),
        Body: stream,
        ContentLength: length,
        ContentType: 'application/octet-stream',
        ...(create_only ? { IfNoneMatch: '*' } : {}),
      });
      signOver(command, sha256);
      try {
        return await this.#client.send(command, { abortSignal: stop });
      } finally {
        stream.destroy();
      }
    };
    await this.#requests.perform(key, send, signal, attempts).catch((error: unknown) => {
      throw error instanceof ObjectNotFoundError ? this.#noBucket(error) : error;
    });
  }

  async #delete(key: string, signal: AbortSignal | undefined, attempts?: number): Promise<void> {
    const send = (stop: AbortSignal) =>
      this.#client.send(new DeleteObjectCommand(this.#at(key)), { abortSignal: stop });
    await this.#requests.perform(key, send, signal, attempts).catch((error: unknown) => {
      throw error instanceof ObjectNotFoundError ? this.#noBucket(error) : error;
    });
  }

  async #getWhole(key: string, signal: AbortSignal): Promise<Buffer> {
    const { Body, ContentLength } = await this.#client.send(new GetObjectCommand(this.#at(key)), {
      abortSignal: signal,
    });
    return readBody(Body, ContentLength);
  }

  async #getRange(key: string, { offset, length }: ByteRange, signal: AbortSignal): Promise<Buffer> {
    const last = offset + length - 1;
    const command = new GetObjectCommand({ ...this.#at(key), Range: `bytes=${offset}-${last}` });
    const { Body, ContentRange } = await this.#client.send(command, { abortSignal: signal });
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

  async #head(key: string, signal: AbortSignal): Promise<number> {
    const { ContentLength } = await this.#client.send(new HeadObjectCommand(this.#at(key)), {
      abortSignal: signal,
    });
    if (ContentLength === undefined) throw new WrongAnswerError('the response has no size');
    return ContentLength;
  }

  /**
   * Checks that the bucket exists before reporting an object as missing: a response to HEAD does not say which of them is
   * missing, and a 404 may come from a proxy.
   */
  async #find<T>(
    key: string,
    send: (stop: AbortSignal) => Promise<T>,
    signal: AbortSignal | undefined,
  ): Promise<T> {
    try {
      return await this.#requests.perform(key, send, signal);
    } catch (error) {
      if (error instanceof ObjectNotFoundError) await this.#requireBucket(signal);
      throw error;
    }
  }

  async #requireBucket(signal: AbortSignal | undefined): Promise<void> {
    const ask = new HeadBucketCommand({ Bucket: this.#bucket });
    await this.#requests
      .perform(this.#bucket, (stop) => this.#client.send(ask, { abortSignal: stop }), signal)
      .catch((error: unknown) => {
        throw error instanceof ObjectNotFoundError ? this.#noBucket(error) : error;
      });
  }

  async #listPage(prefix: string, after: string | undefined) {
    const query = { Bucket: this.#bucket, Prefix: prefix, MaxKeys: this.#page_keys };
    const command = () =>
      new ListObjectsV2Command(after === undefined ? query : { ...query, ContinuationToken: after });
    const send = (stop: AbortSignal) => this.#client.send(command(), { abortSignal: stop });
    return this.#requests.perform(this.#bucket, send).catch((error: unknown) => {
      throw error instanceof ObjectNotFoundError ? this.#noBucket(error) : error;
    });
  }

  #noBucket(error: Error): ObjectStoreUnavailableError {
    return this.#requests.unavailable('the bucket does not exist', error);
  }

  #at(key: string): { Bucket: string; Key: string } {
    return { Bucket: this.#bucket, Key: key };
  }
}

/** Passes the hash to the SDK, which cannot sign a stream's bytes by itself. */
function signOver(command: PutObjectCommand, sha256: string): void {
  command.middlewareStack.add(
    (next) => (args) => {
      const { headers } = args.request as { headers: Record<string, string> };
      headers['x-amz-content-sha256'] = sha256;
      return next(args);
    },
    { step: 'build', name: 'signOver' },
  );
}

function silent(): void {}

function assertKey(key: string): void {
  assert(isObjectKey(key), `not an object key: ${JSON.stringify(key)}`);
}

function clientFor(settings: S3Settings, bounds: S3Patience): S3Client {
  const { endpoint, region, access_key_id, secret_access_key, session_token } = settings;
  const connections = { keepAlive: true, maxSockets: bounds.requests_max, maxFreeSockets: 16 };
  return new S3Client({
    region,
    ...(endpoint === null ? {} : { endpoint }),
    ...(access_key_id === null || secret_access_key === null
      ? {}
      : {
          credentials: {
            accessKeyId: access_key_id,
            secretAccessKey: secret_access_key,
            ...(session_token === null ? {} : { sessionToken: session_token }),
          },
        }),
    // A bucket in the host name needs DNS names and certificates that few self-hosted stores have.
    forcePathStyle: true,
    // Bodies are signed and segments have hashes. Some stores do not support trailers.
    requestChecksumCalculation: 'WHEN_REQUIRED',
    responseChecksumValidation: 'WHEN_REQUIRED',
    // It would open a new connection for every larger body.
    expectContinueHeader: false,
    maxAttempts: 1,
    // The SDK would warn about each failed PUT that it does not retry. We retry.
    logger: { debug: silent, info: silent, warn: silent, error: silent },
    requestHandler: {
      connectionTimeout: bounds.connect_timeout_ms,
      socketTimeout: bounds.stall_timeout_ms,
      httpAgent: connections,
      httpsAgent: connections,
    },
  });
}
