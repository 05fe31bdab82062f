/**
 * An object store in a bucket of S3 or a compatible service.
 *
 * Invariants:
 * - `If-None-Match: *` makes each PUT create-only. Multipart uploads are not used, because some stores (Ceph) do not
 *   support the condition there; large data is cut into objects instead (docs/adr/0016-s3.md).
 * - The first `check` detects a store that ignores the condition. Each PUT is then preceded by a HEAD. Between the two,
 *   another writer of the key could be missed, but segment keys have a random attempt number, so no two writers share
 *   one.
 * - Callers verify the content of what they read.
 */
import { randomBytes } from 'node:crypto';
import {
  DeleteObjectCommand,
  HeadBucketCommand,
  ListObjectsV2Command,
  type S3Client,
} from '@aws-sdk/client-s3';
import { assert } from '../shared/assert.ts';
import type { Log } from '../shared/log.ts';
import {
  type ByteRange,
  isObjectKey,
  type ObjectEntry,
  ObjectExistsError,
  ObjectNotFoundError,
  type ObjectStore,
  type ObjectStoreUnavailableError,
} from './object-store.ts';
import { assertKey, type PutOptions, S3Objects } from './s3-objects.ts';
import {
  clientFor,
  NoConditionsError,
  PATIENCE,
  type S3Patience,
  S3Requests,
  type S3Settings,
} from './s3-requests.ts';
import { type ObjectRequest, RequestSigner, type SignedRequest } from './sign-request.ts';

export type { S3Settings };

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
  readonly #objects: S3Objects;
  readonly #signer: RequestSigner;
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
    this.#objects = new S3Objects({ client: this.#client, bucket, requests: this.#requests });
    this.#signer = new RequestSigner(this.#client, bucket);
  }

  async put(key: string, body: readonly Uint8Array[], signal?: AbortSignal): Promise<void> {
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
    return this.#find(() => this.#objects.get(key, range, signal), signal);
  }

  async size(key: string, signal?: AbortSignal): Promise<number> {
    return this.#find(() => this.#objects.size(key, signal), signal);
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

  /** A request for one object that a process without our credentials may send. */
  sign(request: ObjectRequest): Promise<SignedRequest> {
    assertKey(request.key);
    return this.#signer.sign(request);
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
    options: PutOptions,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    await this.#objects.put(key, body, options, signal).catch((error: unknown) => {
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

  /**
   * Checks that the bucket exists before reporting an object as missing: a response to HEAD does not say which of them is
   * missing, and a 404 may come from a proxy.
   */
  async #find<T>(read: () => Promise<T>, signal: AbortSignal | undefined): Promise<T> {
    try {
      return await read();
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
