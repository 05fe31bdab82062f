/**
 * The object store for a process without credentials: the control plane signs each request (`sign-request.ts`). This
 * store reads and writes single objects, those that the control plane permits. It cannot list or delete, so the objects
 * of a failed flush are deleted later, by a task of the control plane.
 */
import { setImmediate as turn } from 'node:timers/promises';
import { backoffMs, pause } from '../shared/retry.ts';
import {
  type ByteRange,
  type ObjectEntry,
  ObjectForbiddenError,
  type ObjectStore,
  type ObjectStoreUnavailableError,
} from './object-store.ts';
import { S3Objects } from './s3-objects.ts';
import {
  clientWithoutCredentials,
  NoConditionsError,
  NotPermittedYetError,
  PATIENCE,
  type S3Patience,
  S3Requests,
} from './s3-requests.ts';
import { type ObjectRequest, SIGNED_MS, type SignedRequest } from './sign-request.ts';
import { MARK_KEY } from './store-mark.ts';

/** Asks the control plane to sign requests. Null: not permitted. @throws NotPermittedYetError when a retry may help */
export type AskPermissions = (
  requests: readonly ObjectRequest[],
) => Promise<readonly (SignedRequest | null)[]>;

/** Of one question. */
export const REQUESTS_MAX = 64;
const KEPT_MAX = 2_048;
/** A third is left for clocks that differ, and for the request itself. */
const KEPT_MS = (SIGNED_MS * 2) / 3;
/** How long a request waits for the control plane. */
const WAIT_MS = 60_000;

interface Waiting {
  readonly request: ObjectRequest;
  readonly resolve: (signed: SignedRequest | null) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * The requests that the control plane has signed for this process. Requests that come together, or while another question is under
 * way, are asked for together. Those to read are kept for as long as they are surely valid; one to write is used once.
 */
class RequestPermissions {
  readonly #ask: AskPermissions;
  readonly #waiting: Waiting[] = [];
  /** By method and key, the oldest first. */
  readonly #kept = new Map<string, { readonly signed: SignedRequest; readonly until_ms: number }>();
  #asking = false;

  constructor(ask: AskPermissions) {
    this.#ask = ask;
  }

  /** Null: not permitted. Waits while the control plane is away. @throws NotPermittedYetError, the signal's reason */
  async for(request: ObjectRequest, signal: AbortSignal): Promise<SignedRequest | null> {
    const until_ms = performance.now() + WAIT_MS;
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.#once(request, signal);
      } catch (error) {
        if (!(error instanceof NotPermittedYetError) || performance.now() > until_ms) throw error;
        await pause(backoffMs(attempt, 200, 2_000), signal);
        signal.throwIfAborted();
      }
    }
  }

  /** Drops what is kept for a key whose read has failed. */
  forget(key: string): void {
    for (const method of ['GET', 'HEAD']) this.#kept.delete(`${method} ${key}`);
  }

  async #once(request: ObjectRequest, signal: AbortSignal): Promise<SignedRequest | null> {
    const name = `${request.method} ${request.key}`;
    const kept = this.#kept.get(name);
    if (kept && performance.now() < kept.until_ms) return kept.signed;
    const until_ms = performance.now() + KEPT_MS;
    const signed = await this.#asked(request, signal);
    if (signed !== null && request.method !== 'PUT') this.#keep(name, signed, until_ms);
    return signed;
  }

  #keep(name: string, signed: SignedRequest, until_ms: number): void {
    this.#kept.delete(name);
    this.#kept.set(name, { signed, until_ms });
    if (this.#kept.size <= KEPT_MAX) return;
    for (const oldest of this.#kept.keys()) {
      this.#kept.delete(oldest);
      return;
    }
  }

  async #asked(request: ObjectRequest, signal: AbortSignal): Promise<SignedRequest | null> {
    signal.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<SignedRequest | null>();
    const leave = (): void => reject(signal.reason);
    signal.addEventListener('abort', leave, { once: true });
    this.#waiting.push({ request, resolve, reject });
    void this.#askAll();
    return promise.finally(() => signal.removeEventListener('abort', leave));
  }

  async #askAll(): Promise<void> {
    if (this.#asking) return;
    this.#asking = true;
    // Others of this turn join.
    await turn();
    while (this.#waiting.length > 0) await this.#askFor(this.#waiting.splice(0, REQUESTS_MAX));
    this.#asking = false;
  }

  async #askFor(batch: readonly Waiting[]): Promise<void> {
    try {
      const answers = await this.#ask(batch.map(({ request }) => request));
      for (const [i, { resolve, reject }] of batch.entries()) {
        const answer = answers[i];
        if (answer === undefined)
          reject(new NotPermittedYetError('the control plane has not answered everything'));
        else resolve(answer);
      }
    } catch (error) {
      for (const { reject } of batch) reject(error);
    }
  }
}

export class PermittedStore implements ObjectStore {
  readonly description = 'the object store of the control plane';
  readonly #requests: S3Requests;
  readonly #client: ReturnType<typeof clientWithoutCredentials>;
  readonly #permissions: RequestPermissions;
  readonly #objects: S3Objects;

  constructor(ask: AskPermissions, patience: Partial<S3Patience> = {}) {
    const bounds = { ...PATIENCE, ...patience };
    this.#requests = new S3Requests(this.description, bounds);
    this.#client = clientWithoutCredentials(bounds);
    this.#permissions = new RequestPermissions(ask);
    this.#objects = new S3Objects({
      ...{ client: this.#client, bucket: 'none', requests: this.#requests },
      permits: {
        get: (request, signal) => this.#permitted(request, signal),
        forget: (key) => this.#permissions.forget(key),
      },
    });
  }

  async put(key: string, body: readonly Uint8Array[], signal?: AbortSignal): Promise<void> {
    await this.#objects.put(key, body, { create_only: true }, signal).catch((error: unknown) => {
      if (!(error instanceof NoConditionsError)) throw error;
      throw this.#requests.unavailable(
        `it has no create-only writes, which hosts on other machines need (${error.message})`,
      );
    });
  }

  get(key: string, range?: ByteRange, signal?: AbortSignal): Promise<Buffer> {
    return this.#objects.get(key, range, signal);
  }

  size(key: string): Promise<number> {
    return this.#objects.size(key, undefined);
  }

  // biome-ignore lint/correctness/useYield: it lists nothing
  async *list(): AsyncIterable<ObjectEntry> {
    throw this.#refused();
  }

  async delete(): Promise<void> {
    throw this.#refused();
  }

  /** That the control plane answers, and the store can be reached. The control plane itself checks writes. */
  async check(): Promise<void> {
    await this.get(MARK_KEY);
  }

  close(): void {
    this.#client.destroy();
  }

  async #permitted(request: ObjectRequest, signal: AbortSignal): Promise<SignedRequest> {
    const signed = await this.#permissions.for(request, signal);
    if (signed) return signed;
    // Compaction may have replaced the object: then the disk's head names others.
    if (request.method !== 'PUT') throw new ObjectForbiddenError(`${request.key} may not be read`);
    throw this.#requests.unavailable('the control plane does not permit this write');
  }

  #refused(): ObjectStoreUnavailableError {
    return this.#requests.unavailable('this host neither lists nor deletes objects');
  }
}
