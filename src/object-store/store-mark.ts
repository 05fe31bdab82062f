/**
 * Writes and checks the mark of an object store: an object at its root, written once, that names the installation.
 * Every process checks it, so that none uses an empty store, or the store of another installation. Also reads the
 * store's clock, which dates objects (`storeTime`).
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { assert } from '../shared/assert.ts';
import { pause } from '../shared/retry.ts';
import { traced } from '../shared/tracing.ts';
import { FolderStore } from './folder-store.ts';
import {
  type ByteRange,
  type ObjectEntry,
  ObjectExistsError,
  ObjectNotFoundError,
  type ObjectStore,
  ObjectStoreUnavailableError,
  type PutHint,
} from './object-store.ts';
import { lengthOf } from './s3-objects.ts';

export const MARK_KEY = 'berth-store';
const ID = /^[0-9a-f-]{36}$/;

/** It is not this installation's store. Nothing in it is read or written. */
export class WrongStoreError extends ObjectStoreUnavailableError {
  override name = 'WrongStoreError';

  constructor(store: ObjectStore, reason: string) {
    super(`${store.description}: ${reason}`, { reason });
  }
}

export function otherStore(store: ObjectStore): WrongStoreError {
  return new WrongStoreError(store, 'it belongs to another installation of Berth');
}

export function unmarkedStore(store: ObjectStore): WrongStoreError {
  return new WrongStoreError(store, 'it is another object store than before, or it was emptied');
}

/** Null: the store has no mark. @throws ObjectStoreUnavailableError */
export async function readMark(store: ObjectStore): Promise<string | null> {
  let text: string;
  try {
    text = (await store.get(MARK_KEY)).toString('latin1').trim();
  } catch (error) {
    if (error instanceof ObjectNotFoundError) return null;
    throw error;
  }
  if (!ID.test(text)) throw new WrongStoreError(store, `its object ${MARK_KEY} is not a mark of Berth`);
  return text;
}

/** @throws WrongStoreError when another installation has written its mark first */
export async function writeMark(store: ObjectStore, id: string): Promise<void> {
  assert(ID.test(id), 'a mark is an id');
  try {
    await store.put(MARK_KEY, [Buffer.from(`${id}\n`)]);
  } catch (error) {
    if (!(error instanceof ObjectExistsError)) throw error;
    if ((await readMark(store)) !== id) throw otherStore(store);
  }
}

/** Of `disks/INSTANCE/KIND/…`. */
function attributesOf(key: string) {
  const [, instance_id, kind] = /^disks\/([^/]+)\/([a-z]+)\//.exec(key) ?? [];
  return { 'berth.instance_id': instance_id, 'berth.object_kind': kind };
}

/** A store that is used only after its mark was verified. Its reads and writes are spans. */
export class MarkedStore implements ObjectStore {
  readonly description: string;
  readonly #store: ObjectStore;
  readonly #verify: () => Promise<void>;
  #verified: Promise<void> | undefined;

  /** `verify` throws {@link WrongStoreError}, or {@link ObjectStoreUnavailableError} while it cannot tell. */
  constructor(store: ObjectStore, verify: () => Promise<void>) {
    this.#store = store;
    this.#verify = verify;
    this.description = store.description;
  }

  /** Verifies once, because a store does not become another one. After a failure the next caller retries. */
  verified(): Promise<void> {
    if (!this.#verified) {
      const verified = this.#verify();
      this.#verified = verified;
      verified.catch(() => {
        this.#verified = undefined;
      });
    }
    return this.#verified;
  }

  async put(key: string, body: readonly Uint8Array[], signal?: AbortSignal, hint?: PutHint): Promise<void> {
    await this.verified();
    const attributes = { ...attributesOf(key), 'berth.bytes': lengthOf(body) };
    await traced('PUT object', attributes, () => this.#store.put(key, body, signal, hint), 'client');
  }

  async get(key: string, range?: ByteRange, signal?: AbortSignal): Promise<Buffer> {
    await this.verified();
    const read = async (note: (found: { 'berth.bytes': number }) => void): Promise<Buffer> => {
      const found = await this.#store.get(key, range, signal);
      note({ 'berth.bytes': found.length });
      return found;
    };
    return traced('GET object', attributesOf(key), read, 'client');
  }

  async size(key: string): Promise<number> {
    await this.verified();
    return this.#store.size(key);
  }

  async *list(prefix: string): AsyncIterable<ObjectEntry> {
    await this.verified();
    yield* this.#store.list(prefix);
  }

  async delete(key: string): Promise<void> {
    await this.verified();
    await this.#store.delete(key);
  }

  async check(): Promise<void> {
    await this.verified();
    await this.#store.check();
  }
}

/** The database's record of the mark. */
export interface KnownMarks {
  /** Records `id` as the mark's name if there is none. Returns the name, and whether the mark was written. */
  readonly intend: (id: string) => Promise<{ readonly id: string; readonly marked: boolean }>;
  readonly record: (id: string) => Promise<void>;
}

/** Longer than the other installation takes from its look for a mark to its write. A folder has create-only writes. */
const settleMs = (store: ObjectStore) => (store instanceof FolderStore ? 0 : 2_000);

/**
 * Makes sure that the configured object store has the mark that the database names, or gets it now, once.
 *
 * The database records the name before the mark is written, and the fact afterwards. So a killed process's claim is continued by the
 * next. The mark is read back before the fact is recorded: some S3 servers ignore `If-None-Match`, so that of two installations that
 * claim a bucket at the same moment both write, and the later mark counts.
 * @throws WrongStoreError, ObjectStoreUnavailableError
 */
export async function claimStore(
  known: KnownMarks,
  store: ObjectStore,
  settle_ms = settleMs(store),
): Promise<void> {
  const there = await readMark(store);
  const { id, marked } = await known.intend(randomUUID());
  if (there !== null && there !== id) throw otherStore(store);
  if (there === null && marked) throw unmarkedStore(store);
  if (there === null) {
    await writeMark(store, id);
    await pause(settle_ms);
    if ((await readMark(store)) !== id) throw otherStore(store);
  }
  if (!marked) await known.record(id);
}

/** The store for processes with access to the database. */
export function ownStore(known: KnownMarks, store: ObjectStore): MarkedStore {
  return new MarkedStore(store, () => claimStore(known, store));
}

const PREFIX = 'probe/';

/** The time of the store's clock, which dates objects. It may differ from this machine's. */
export async function storeTime(store: ObjectStore): Promise<Date> {
  const key = `${PREFIX}${randomBytes(12).toString('hex')}`;
  try {
    await store.put(key, [Buffer.from('now')]);
    for await (const entry of store.list(PREFIX)) if (entry.key === key) return entry.modified_at;
    throw new Error(`${store.description}: an object just written is not listed`);
  } finally {
    await store.delete(key);
  }
}
