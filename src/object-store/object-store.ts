/**
 * Where segments live. Keys are slash-separated, `[A-Za-z0-9._-]` between the slashes, at most 512 bytes.
 * Objects are immutable: a key is written once and never changed, which is what lets a retry, a second
 * writer or a crash in between do no harm.
 */
export interface ObjectStore {
  /** For messages: `folder /var/lib/…` or `s3 bucket b at https://…`. Never holds a credential. */
  readonly description: string;
  /**
   * Writes a new object; it is durable when this resolves. Create-only.
   * @throws ObjectExistsError when the key is taken: perhaps by an earlier try of this very call whose answer was lost.
   */
  put(key: string, body: readonly Uint8Array[], signal?: AbortSignal, hint?: PutHint): Promise<void>;
  /**
   * Reads `range.length` bytes from `range.offset`, or all.
   * @throws ObjectNotFoundError
   * @throws ObjectRangeError when the range reaches past the end.
   */
  get(key: string, range?: ByteRange, signal?: AbortSignal): Promise<Buffer>;
  /** Size in bytes. @throws ObjectNotFoundError */
  size(key: string): Promise<number>;
  /** All objects whose key starts with `prefix` (a whole path: it ends with a slash). */
  list(prefix: string): AsyncIterable<ObjectEntry>;
  /** Removes an object; one that is not there is no error. */
  delete(key: string): Promise<void>;
  /** Resolves when a write and a read succeed now. */
  check(): Promise<void>;
}

/** `cold`: it is likely not read soon, so it need not stay in this machine's memory. */
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
/** The object is there, but shorter than what was asked of it. */
export class ObjectRangeError extends Error {
  override name = 'ObjectRangeError';
}
/** The store cannot be used now (full, unreachable, not permitted); trying again later may work. */
export class ObjectStoreUnavailableError extends Error {
  override name = 'ObjectStoreUnavailableError';
  /** What is wrong, without saying where the store is: fit for those who may not know that. */
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
