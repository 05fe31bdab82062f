/**
 * An object store in a local folder. Each object is a file; its key is the path below the root.
 *
 * Invariants:
 * - An object appears completely or not at all: it is written and fsynced as a temporary file in `.tmp` (a name that no
 *   key can have) and then link(2)ed to its name, which fails if the name is taken.
 * - When `put` resolves, the file, its name and all its parent folders are durable.
 * - Temporary files are always removed. `open` deletes those of a crash after an hour.
 * - Only the opened folder is used: when its disk is unmounted, the store is unavailable, whatever the mount point
 *   holds.
 */
import { randomBytes } from 'node:crypto';
import { constants, type Stats } from 'node:fs';
import { type FileHandle, link, mkdir, open, readdir, stat, unlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { assert, present } from '../shared/assert.ts';
import { errnoOf } from '../shared/errors.ts';
import type { Log } from '../shared/log.ts';
import { release } from '../shared/release.ts';
import {
  type ByteRange,
  isObjectKey,
  type ObjectEntry,
  ObjectExistsError,
  ObjectNotFoundError,
  ObjectRangeError,
  type ObjectStore,
  ObjectStoreUnavailableError,
  type PutHint,
} from './object-store.ts';

/** The alignment that O_DIRECT needs for addresses, offsets and lengths on common disks. */
const ALIGNMENT_BYTES = 4_096;
const STAGE_BYTES = 1024 * 1024;
/** As many as a flush writes at once. Further buffers are released after use. */
const STAGES_KEPT = 4;
const stages: Uint8Array[] = [];

/** Page-aligned: V8 allocates resizable buffers in whole pages. */
function newStage(): Uint8Array {
  return new Uint8Array(new ArrayBuffer(STAGE_BYTES, { maxByteLength: STAGE_BYTES }));
}

/**
 * Writes and fsyncs a file, over an existing one, with O_DIRECT (open(2)). Segments are rarely read soon: in the page cache they would
 * evict pages that guests read, and would cost half a core-second for 512 MiB. Returns false when the file system does not support it; the file's
 * content is then undefined.
 */
export async function writePastCache(
  path: string,
  body: readonly Uint8Array[],
  signal?: AbortSignal,
): Promise<boolean> {
  const { O_WRONLY, O_CREAT, O_TRUNC, O_DIRECT } = constants;
  const stage = stages.pop() ?? newStage();
  try {
    await using file = await open(path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT, 0o600);
    await writeStaged(file, body, stage, signal);
    await file.sync();
    signal?.throwIfAborted();
    return true;
  } catch (error) {
    if (errnoOf(error) === 'EINVAL') return false;
    throw error;
  } finally {
    if (stages.length < STAGES_KEPT) stages.push(stage);
    else release(stage);
  }
}

async function writeStaged(
  file: FileHandle,
  body: readonly Uint8Array[],
  stage: Uint8Array,
  signal: AbortSignal | undefined,
): Promise<void> {
  let written = 0;
  let staged = 0;
  const write = async (bytes: number): Promise<void> => {
    signal?.throwIfAborted();
    for (let done = 0; done < bytes; ) {
      const { bytesWritten } = await file.write(stage, done, bytes - done, written + done);
      done += bytesWritten;
    }
    written += bytes;
    staged = 0;
  };
  for (const part of body) {
    for (let at = 0; at < part.length; ) {
      const taken = part.subarray(at, at + STAGE_BYTES - staged);
      stage.set(taken, staged);
      at += taken.length;
      staged += taken.length;
      if (staged === STAGE_BYTES) await write(STAGE_BYTES);
    }
  }
  if (staged === 0) return;
  const size_bytes = written + staged;
  const whole = Math.ceil(staged / ALIGNMENT_BYTES) * ALIGNMENT_BYTES;
  stage.fill(0, staged, whole);
  await write(whole);
  await file.truncate(size_bytes);
}

const TEMP_FOLDER = '.tmp';
const TEMP_MAX_AGE_MS = 3_600_000;
/** Smaller objects are written through the cache. */
const PAST_CACHE_MIN_BYTES = 1024 * 1024;
/** Folders known to be durable, so that `put` need not fsync each parent again. */
const KNOWN_FOLDERS_MAX = 4_096;

/** System errors that make the folder unavailable, with the reason for the operator. */
const UNAVAILABLE: Readonly<Record<string, string>> = {
  ENOSPC: 'the disk is full',
  EDQUOT: 'the disk quota is used up',
  EACCES: 'permission denied',
  EPERM: 'operation not permitted',
  EROFS: 'the file system is read-only',
  EIO: 'the disk reports an I/O error',
  ESTALE: 'the file system went away',
  EMFILE: 'too many open files',
  ENFILE: 'too many open files',
};

export interface FolderStoreOptions {
  readonly log?: Log;
}

export class FolderStore implements ObjectStore {
  readonly description: string;
  readonly #root: string;
  readonly #log: Log | undefined;
  readonly #durableFolders = new Map<string, Promise<void>>();
  #opened: Stats | undefined;
  /** The file system does not support O_DIRECT. */
  #only_cached = false;

  private constructor(root: string, log: Log | undefined) {
    this.#root = root;
    this.#log = log;
    this.description = `folder ${root}`;
  }

  /**
   * Opens the store, creates the folder (mode 0700) if needed, and deletes temporary files older than an hour.
   * @throws ObjectStoreUnavailableError
   */
  static async open(root: string, { log }: FolderStoreOptions = {}): Promise<FolderStore> {
    const store = new FolderStore(root, log);
    await store.#guard(async () => {
      await mkdir(join(root, TEMP_FOLDER), { recursive: true, mode: 0o700 });
      await syncFolder(root);
      store.#opened = await stat(root);
      await store.#sweepTemporaryFiles(Date.now() - TEMP_MAX_AGE_MS);
    });
    return store;
  }

  async put(key: string, body: readonly Uint8Array[], signal?: AbortSignal, hint?: PutHint): Promise<void> {
    const path = this.#path(key);
    await this.#guard(async () => {
      const temp = join(this.#root, TEMP_FOLDER, `${process.pid}-${randomBytes(12).toString('hex')}`);
      try {
        await this.#write(temp, body, signal, hint);
        await this.#requireRoot();
        await this.#link(temp, path, key);
        await syncFolder(dirname(path));
      } catch (error) {
        if (isMissing(error)) await this.#requireRoot();
        throw error;
      } finally {
        await unlinkIfThere(temp);
      }
    });
  }

  async get(key: string, range?: ByteRange, signal?: AbortSignal): Promise<Buffer> {
    const path = this.#path(key);
    signal?.throwIfAborted();
    return this.#guard(async () => {
      const file = await this.#openObject(path, key);
      try {
        const size_bytes = (await file.stat()).size;
        const { offset, length } = range ?? { offset: 0, length: size_bytes };
        assert(offset >= 0 && length >= 0, 'a byte range is not negative');
        if (offset + length > size_bytes) {
          throw new ObjectRangeError(
            `${key}: ${length} bytes at ${offset} end after its ${size_bytes} bytes`,
          );
        }
        return await readFully(file, offset, length, key);
      } finally {
        await file.close();
      }
    });
  }

  async size(key: string): Promise<number> {
    return (await this.#stat(key)).size;
  }

  async *list(prefix: string): AsyncIterable<ObjectEntry> {
    assert(
      prefix === '' || (prefix.endsWith('/') && isObjectKey(prefix.slice(0, -1))),
      'a prefix is a whole path',
    );
    const names = await this.#guard(async () => {
      const found = await readdir(join(this.#root, prefix), { withFileTypes: true }).catch(
        (error: unknown) => {
          if (!isMissing(error)) throw error;
          return [];
        },
      );
      await this.#requireRoot();
      return found;
    });
    for (const entry of names.sort((a, b) => (a.name < b.name ? -1 : 1))) {
      const key = `${prefix}${entry.name}`;
      if (!isObjectKey(key)) continue;
      if (entry.isDirectory()) yield* this.list(`${key}/`);
      if (entry.isFile()) {
        const found = await this.#stat(key).catch((error: unknown) => {
          if (error instanceof ObjectNotFoundError) return undefined; // deleted after the folder was read
          throw error;
        });
        if (found) yield { key, size_bytes: found.size, modified_at: found.mtime };
      }
    }
  }

  async delete(key: string): Promise<void> {
    const path = this.#path(key);
    await this.#guard(async () => {
      await this.#requireRoot();
      await unlinkIfThere(path);
      await this.#requireRoot();
    });
  }

  async check(): Promise<void> {
    const key = `probe/${randomBytes(12).toString('hex')}`;
    const body = randomBytes(64);
    try {
      await this.put(key, [body]);
      const read = await this.get(key);
      if (!read.equals(body)) {
        const reason = 'a probe object was read back changed';
        throw new ObjectStoreUnavailableError(`${this.description}: ${reason}`, { reason });
      }
    } finally {
      await this.delete(key);
    }
  }

  async #write(
    temp: string,
    body: readonly Uint8Array[],
    signal: AbortSignal | undefined,
    hint: PutHint | undefined,
  ): Promise<void> {
    signal?.throwIfAborted();
    const is_large = body.reduce((sum, { length }) => sum + length, 0) >= PAST_CACHE_MIN_BYTES;
    if (hint === 'cold' && is_large && !this.#only_cached) {
      if (await writePastCache(temp, body, signal)) return;
      this.#pastCacheIsRefused();
    }
    await writeDurably(temp, body, signal);
  }

  #pastCacheIsRefused(): void {
    if (!this.#only_cached) {
      this.#log?.info(
        { store: this.description },
        "the object store's file system takes no writes past the system's cache (O_DIRECT): large objects go through it, which takes more of the processor",
      );
    }
    this.#only_cached = true;
  }

  async #stat(key: string): Promise<Stats> {
    const path = this.#path(key);
    return this.#guard(async () => {
      const found = await stat(path).catch((error: unknown) => this.#notThere(key, error));
      if (!found.isFile()) throw notFound(key);
      return found;
    });
  }

  #path(key: string): string {
    assert(isObjectKey(key), `not an object key: ${JSON.stringify(key)}`);
    return join(this.#root, key);
  }

  async #link(temp: string, path: string, key: string): Promise<void> {
    await this.#ensureFolder(dirname(path), key);
    try {
      await link(temp, path).catch(async (error: unknown) => {
        if (errnoOf(error) !== 'ENOENT') throw error;
        this.#durableFolders.clear(); // a folder was removed from outside
        await this.#ensureFolder(dirname(path), key);
        await link(temp, path);
      });
    } catch (error) {
      if (errnoOf(error) !== 'EEXIST') throw error;
      // After an ambiguous retry the caller may accept this object as its own, so its name must be durable.
      await syncFolder(dirname(path));
      throw new ObjectExistsError(`${key} already exists`, { cause: error });
    }
  }

  /** Creates `folder` and its parents below the root, each durably. */
  #ensureFolder(folder: string, key: string): Promise<void> {
    if (folder.length <= this.#root.length) return Promise.resolve();
    const known = this.#durableFolders.get(folder);
    if (known) return known;
    if (this.#durableFolders.size >= KNOWN_FOLDERS_MAX) this.#durableFolders.clear();
    const made = this.#makeFolder(folder, key);
    this.#durableFolders.set(folder, made);
    made.catch(() => this.#durableFolders.delete(folder));
    return made;
  }

  async #makeFolder(folder: string, key: string): Promise<void> {
    const parent = dirname(folder);
    await this.#ensureFolder(parent, key);
    try {
      await mkdir(folder, { mode: 0o700 });
    } catch (error) {
      const code = errnoOf(error);
      if (code === 'ENOTDIR') throw new ObjectExistsError(`${key}: a part of its path is an object`);
      if (code !== 'EEXIST') throw error;
      if (!(await stat(folder)).isDirectory()) {
        throw new ObjectExistsError(`${key}: a part of its path is an object`);
      }
    }
    await syncFolder(parent);
  }

  async #openObject(path: string, key: string): Promise<FileHandle> {
    const file = await open(path, 'r').catch((error: unknown) => this.#notThere(key, error));
    if ((await file.stat()).isFile()) return file;
    await file.close();
    throw notFound(key);
  }

  /** Reports a missing object, unless the whole store is missing, like an unmounted disk. */
  async #notThere(key: string, error: unknown): Promise<never> {
    if (!isMissing(error)) throw error;
    await this.#requireRoot();
    throw notFound(key);
  }

  /** @throws ObjectStoreUnavailableError */
  async #requireRoot(): Promise<void> {
    const opened = present(this.#opened, 'the folder that was opened');
    const [root, temp] = await Promise.all([
      statIfThere(this.#root),
      statIfThere(join(this.#root, TEMP_FOLDER)),
    ]);
    const same = root?.dev === opened.dev && root.ino === opened.ino;
    if (same && temp?.isDirectory()) return;
    const other = root?.isDirectory() && !same;
    const reason = other
      ? 'another folder is in its place than at the start (if that is meant, start Berth again)'
      : 'its folder is gone';
    throw new ObjectStoreUnavailableError(`${this.description}: ${reason}`, { reason });
  }

  async #sweepTemporaryFiles(older_than_ms: number): Promise<void> {
    const folder = join(this.#root, TEMP_FOLDER);
    for (const name of await readdir(folder)) {
      const path = join(folder, name);
      const found = await stat(path).catch(() => undefined);
      if (found?.isFile() && found.mtimeMs < older_than_ms) await unlinkIfThere(path);
    }
  }

  /** Turns system errors that make the folder unavailable into {@link ObjectStoreUnavailableError}. */
  async #guard<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      const code = errnoOf(error);
      const reason = code === undefined ? undefined : UNAVAILABLE[code];
      if (reason === undefined) throw error;
      throw new ObjectStoreUnavailableError(`${this.description}: ${reason} (${code})`, {
        cause: error,
        reason: `${reason} (${code})`,
      });
    }
  }
}

async function writeDurably(path: string, body: readonly Uint8Array[], signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  const file = await open(path, 'w', 0o600);
  try {
    for (const part of body) {
      signal?.throwIfAborted();
      await writeFully(file, part);
    }
    await file.sync();
    signal?.throwIfAborted();
  } finally {
    await file.close();
  }
}

async function writeFully(file: FileHandle, part: Uint8Array): Promise<void> {
  for (let done = 0; done < part.length; ) {
    const { bytesWritten } = await file.write(part, done, part.length - done);
    done += bytesWritten;
  }
}

async function readFully(file: FileHandle, offset: number, length: number, key: string): Promise<Buffer> {
  const out = Buffer.allocUnsafeSlow(length);
  for (let done = 0; done < length; ) {
    const { bytesRead } = await file.read(out, done, length - done, offset + done);
    if (bytesRead === 0)
      throw new ObjectRangeError(`${key}: the object ends at ${offset + done}, before the range does`);
    done += bytesRead;
  }
  return out;
}

async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

async function statIfThere(path: string): Promise<Stats | undefined> {
  return stat(path).catch((error: unknown) => {
    if (isMissing(error)) return undefined;
    throw error;
  });
}

async function unlinkIfThere(path: string): Promise<void> {
  await unlink(path).catch((error: unknown) => {
    if (!isMissing(error)) throw error;
  });
}

function isMissing(error: unknown): boolean {
  const code = errnoOf(error);
  return code === 'ENOENT' || code === 'ENOTDIR';
}

function notFound(key: string): ObjectNotFoundError {
  return new ObjectNotFoundError(`${key} does not exist`);
}
