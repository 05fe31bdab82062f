/**
 * Defines `ObjectStore`, a store of immutable objects, and its errors. A key has at most 512 bytes: parts of
 * `[A-Za-z0-9._-]`, with slashes between them. A key is written once and never changed, so retries, concurrent writers
 * and crashes do no harm.
 */
export interface ObjectStore {
  /** For messages: `folder /var/lib/…` or `s3 bucket b at https://…`, without credentials. */
  readonly description: string;
  /**
   * Creates an object, durable when this resolves.
   * @throws ObjectExistsError when the key is taken, possibly by an earlier attempt of this call whose response was lost.
   */
  put(key: string, body: readonly Uint8Array[], signal?: AbortSignal, hint?: PutHint): Promise<void>;
  /**
   * Reads `range.length` bytes from `range.offset`, or all.
   * @throws ObjectNotFoundError
   * @throws ObjectRangeError when the range ends after the object.
   */
  get(key: string, range?: ByteRange, signal?: AbortSignal): Promise<Buffer>;
  /** Size in bytes. @throws ObjectNotFoundError */
  size(key: string): Promise<number>;
  /** All objects whose key starts with `prefix` (a whole path: it ends with a slash). */
  list(prefix: string): AsyncIterable<ObjectEntry>;
  /** Deletes an object, if it exists. */
  delete(key: string): Promise<void>;
  /** Resolves when a write and a read succeed. */
  check(): Promise<void>;
}

/** `cold`: the object is probably not read soon, so it need not be cached in memory. */
export type PutHint = 'cold';

export interface ByteRange {
  readonly offset: number;
  readonly length: number;
}

export interface ObjectEntry {
  readonly key: string;
  readonly size_bytes: number;
  /** When it was written, by the store's clock. */
  readonly modified_at: Date;
}

export class ObjectExistsError extends Error {
  override name = 'ObjectExistsError';
}
export class ObjectNotFoundError extends Error {
  override name = 'ObjectNotFoundError';
}
/** This process may not read the object, so it does not learn whether there is one. */
export class ObjectForbiddenError extends ObjectNotFoundError {
  override name = 'ObjectForbiddenError';
}
/** The object is shorter than the requested range. */
export class ObjectRangeError extends Error {
  override name = 'ObjectRangeError';
}
/** The store is unavailable (full, unreachable, not permitted). A later retry may succeed. */
export class ObjectStoreUnavailableError extends Error {
  override name = 'ObjectStoreUnavailableError';
  /** The reason without the store's location, for users who must not see that. */
  readonly reason: string;

  constructor(message: string, { reason = message, ...options }: ErrorOptions & { reason?: string } = {}) {
    super(message, options);
    this.reason = reason;
  }
}

const KEY = /^[A-Za-z0-9_-][A-Za-z0-9._-]*(\/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$/;

export function isObjectKey(key: string): boolean {
  return key.length <= 512 && KEY.test(key);
}
