/** Copies objects out of a store into a backup's folder, and back. Memory is bounded, whatever their number. */
import { createHash } from 'node:crypto';
import { mkdir, open, readFile, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import {
  ObjectExistsError,
  ObjectNotFoundError,
  ObjectRangeError,
  type ObjectStore,
} from '../../object-store/object-store.ts';
import { errnoOf } from '../../shared/errors.ts';
import { inParallel } from '../../shared/in-parallel.ts';
import type { BackupObject } from './manifest.ts';

const PIECE_BYTES = 4 * 1024 * 1024;
const AT_ONCE = 4;

export interface StoredObject {
  readonly key: string;
  readonly size_bytes: number;
}

export interface SaveOptions {
  readonly store: ObjectStore;
  readonly folder: string;
  readonly objects: readonly StoredObject[];
  readonly signal: AbortSignal;
  readonly onProgress: (done: number, bytes: number) => void;
}

export interface SavedObjects {
  readonly saved: readonly BackupObject[];
  /** Objects that could not be saved intact; the backup does not contain them. */
  readonly damaged: readonly string[];
}

/** @throws ObjectStoreUnavailableError and the like */
export async function saveObjects(options: SaveOptions): Promise<SavedObjects> {
  const { objects, onProgress } = options;
  const saved: BackupObject[] = [];
  const damaged: string[] = [];
  let bytes = 0;
  await inParallel(objects, AT_ONCE, async (object) => {
    const sha256 = await saveObject(options, object);
    if (sha256 === null) damaged.push(object.key);
    else saved.push({ ...object, sha256 });
    bytes += object.size_bytes;
    onProgress(saved.length + damaged.length, bytes);
  });
  return { saved, damaged };
}

async function saveObject(
  { store, folder, signal }: SaveOptions,
  { key, size_bytes }: StoredObject,
): Promise<string | null> {
  const path = join(folder, key);
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  const hash = createHash('sha256');
  try {
    if ((await store.size(key)) !== size_bytes) return null;
    await using file = await open(path, 'wx', 0o600);
    for (let offset = 0; offset < size_bytes; offset += PIECE_BYTES) {
      const length = Math.min(PIECE_BYTES, size_bytes - offset);
      const piece = await store.get(key, { offset, length }, signal);
      hash.update(piece);
      await file.writeFile(piece);
    }
  } catch (error) {
    await rm(path, { force: true });
    if (error instanceof ObjectNotFoundError || error instanceof ObjectRangeError) return null;
    throw error;
  }
  return hash.digest('hex');
}

/**
 * Copies the backup's objects into a store, except damaged ones, whose keys it returns. Without `folder` it copies nothing, and
 * checks that the store has the objects of the list.
 */
export async function restoreObjects(options: {
  readonly store: ObjectStore;
  readonly folder: string | null;
  readonly objects: readonly BackupObject[];
  readonly signal: AbortSignal;
  readonly onProgress: (done: number, bytes: number) => void;
}): Promise<string[]> {
  const { store, folder, objects, signal, onProgress } = options;
  const damaged: string[] = [];
  let done = 0;
  let bytes = 0;
  await inParallel(objects, AT_ONCE, async (object) => {
    signal.throwIfAborted();
    const right =
      folder === null ? await isThere(store, object) : await bringObject(store, folder, object, signal);
    if (!right) damaged.push(object.key);
    done += 1;
    bytes += object.size_bytes;
    onProgress(done, bytes);
  });
  return damaged;
}

async function isThere(store: ObjectStore, { key, size_bytes }: BackupObject): Promise<boolean> {
  try {
    return (await store.size(key)) === size_bytes;
  } catch (error) {
    if (error instanceof ObjectNotFoundError) return false;
    throw error;
  }
}

/** Holds one whole object in memory: up to 17 MB of a segment, 40 bytes for each block of a map. */
async function bringObject(
  store: ObjectStore,
  folder: string,
  { key, sha256 }: BackupObject,
  signal: AbortSignal,
): Promise<boolean> {
  let body: Buffer;
  try {
    body = await readFile(join(folder, key));
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return false;
    throw error;
  }
  if (createHash('sha256').update(body).digest('hex') !== sha256) return false;
  try {
    await store.put(key, [body], signal);
  } catch (error) {
    if (!(error instanceof ObjectExistsError)) throw error;
    return (await store.get(key, undefined, signal)).equals(body);
  }
  return true;
}
