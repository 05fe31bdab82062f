/**
 * The object store for a process without credentials: the control plane signs each request (`sign-request.ts`). It writes and reads
 * single objects that it may; it lists and deletes nothing, so what a failed flush leaves behind is swept by a task.
 */
import {
  type ByteRange,
  type ObjectEntry,
  ObjectForbiddenError,
  type ObjectStore,
  type ObjectStoreUnavailableError,
} from './object-store.ts';
import { type AskPermissions, Permissions } from './permissions.ts';
import { clientWithoutCredentials } from './s3-client.ts';
import { S3Objects } from './s3-objects.ts';
import { NoConditionsError, PATIENCE, type S3Patience, S3Requests } from './s3-requests.ts';
import type { ObjectRequest, SignedRequest } from './sign-request.ts';
import { MARK_KEY } from './store-mark.ts';

export class PermittedStore implements ObjectStore {
  readonly description = 'the object store of the control plane';
  readonly #requests: S3Requests;
  readonly #client: ReturnType<typeof clientWithoutCredentials>;
  readonly #permissions: Permissions;
  readonly #objects: S3Objects;

  constructor(ask: AskPermissions, patience: Partial<S3Patience> = {}) {
    const bounds = { ...PATIENCE, ...patience };
    this.#requests = new S3Requests(this.description, bounds);
    this.#client = clientWithoutCredentials(bounds);
    this.#permissions = new Permissions(ask);
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
