/**
 * Copies the objects and base images of a backup: from the object store and the folder of images into the backup, and
 * from the backup back.
 *
 * A restored object is compared with the SHA-256 that was noted when it was saved. The files of an image are compared
 * with the image's own manifest. A damaged object or image is left out, and reported to the caller.
 */
import { createHash } from 'node:crypto';
import { lstat, mkdir, open, readFile, rm, symlink } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import {
  fetchImage,
  ImageDamagedError,
  type StoredImage,
  storeImage,
} from '../../disk-format/image-objects.ts';
import { listHostImages } from '../../host/images/host-images.ts';
import { runCommand } from '../../launcher/run-command.ts';
import {
  ObjectExistsError,
  ObjectNotFoundError,
  ObjectRangeError,
  type ObjectStore,
} from '../../object-store/object-store.ts';
import { inParallel } from '../../shared/concurrency.ts';
import { errnoOf } from '../../shared/errors.ts';
import { BackupError, type BackupImage, type BackupObject } from './manifest.ts';
import { fileSha256 } from './table-data.ts';

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

// Base images: folders, saved from this machine or from the object store, and restored to both.

/** A version that disks need, or that new disks get. */
export interface WantedImage {
  readonly image: string;
  readonly version: string;
  /** Null: it is not in the object store. */
  readonly index_sha256: string | null;
  readonly current: boolean;
}

export interface SaveImages {
  readonly images_dir: string;
  readonly into: string;
  readonly wanted: readonly WantedImage[];
  /** Null: what it has stays there. */
  readonly store: ObjectStore | null;
  readonly signal: AbortSignal;
}

export interface SavedImages {
  readonly images: BackupImage[];
  /** Neither on this machine nor in the object store. */
  readonly missing: string[];
  readonly damaged: string[];
}

/** Saves the wanted images, and those that are current on this machine. One that it lacks is fetched from the store. */
export async function saveImages({
  images_dir,
  into,
  wanted,
  store,
  signal,
}: SaveImages): Promise<SavedImages> {
  const found = await listHostImages(images_dir);
  const isWanted = (id: string, version: string) =>
    wanted.find((each) => each.image === id && each.version === version);
  const saved: SavedImages = { images: [], missing: [], damaged: [] };
  for (const { id, version, folder, newest } of found) {
    signal.throwIfAborted();
    const stored = isWanted(id, version);
    if (!newest && !stored) continue;
    const image = { id, version, name: basename(folder), newest };
    const problem = await copyImage(images_dir, into, image);
    if (problem === null) saved.images.push(image);
    else if (store === null || typeof stored?.index_sha256 !== 'string')
      saved.damaged.push(`images/${id}/${image.name}: ${problem}`);
  }
  const isSaved = (id: string, version: string) =>
    saved.images.some((each) => each.id === id && each.version === version);
  for (const { image: id, version, index_sha256, current } of wanted) {
    signal.throwIfAborted();
    if (isSaved(id, version)) continue;
    const name = version.slice(0, 12);
    if (index_sha256 === null) {
      if (!found.some((each) => each.id === id && each.version === version))
        saved.missing.push(`${id} ${name}`);
      continue;
    }
    if (store === null) continue;
    try {
      await mkdir(join(into, id), { recursive: true, mode: 0o711 });
      await fetchImage(store, { id, version, index_sha256 }, join(into, id, name), { signal });
      saved.images.push({ id, version, name, newest: current });
    } catch (error) {
      if (!(error instanceof ImageDamagedError)) throw error;
      saved.damaged.push(`images/${id}/${name}: ${error.message}`);
    }
  }
  return saved;
}

/** Puts restored images into the store, which may have them already. Returns what the database says of each, by version. */
export async function storeImages(
  store: ObjectStore,
  images_dir: string,
  images: readonly BackupImage[],
  signal: AbortSignal,
): Promise<ReadonlyMap<string, StoredImage>> {
  const stored = new Map<string, StoredImage>();
  for (const { id, version, folder, manifest } of await listHostImages(images_dir)) {
    if (!images.some((each) => each.id === id && each.version === version)) continue;
    // The store may have another build of it, which stays what the database knows.
    const image = await storeImage(store, folder, manifest, { signal }).catch((error: unknown) => {
      if (!(error instanceof ImageDamagedError)) throw error;
    });
    if (image) stored.set(version, image);
  }
  return stored;
}

/** Returns the image's damage, if any, and then removes the copy. @throws BackupError when it cannot be copied */
export async function copyImage(
  from_dir: string,
  to_dir: string,
  image: BackupImage,
): Promise<string | null> {
  const from = join(from_dir, image.id, image.name);
  if ((await lstat(from).catch(() => undefined)) === undefined) return 'it is missing';
  const to = join(to_dir, image.id, image.name);
  await mkdir(dirname(to), { recursive: true, mode: 0o711 });
  const copied = await runCommand('cp', [
    '-R',
    '--sparse=always',
    '--preserve=mode,timestamps',
    '-T',
    from,
    to,
  ]);
  if (copied.code !== 0)
    throw new BackupError(`${from} could not be copied: ${copied.stderr.trim()}`, 'state');
  const problem = await imageProblem(to, image.version);
  if (problem !== null) await rm(to, { recursive: true });
  return problem;
}

/** Makes it current for new disks. */
export async function makeNewest(images_dir: string, { id, name }: BackupImage): Promise<void> {
  const current = join(images_dir, id, 'current');
  await rm(current, { force: true });
  await symlink(name, current);
}

async function imageProblem(folder: string, version: string): Promise<string | null> {
  try {
    const manifest = JSON.parse(await readFile(join(folder, 'manifest.json'), 'utf8')) as {
      readonly files?: Readonly<Record<string, string>>;
    };
    if (manifest.files?.['rootfs.img'] !== version) return 'it is another image than it was';
    for (const [name, sha256] of Object.entries(manifest.files)) {
      if ((await fileSha256(join(folder, name))) !== sha256) return `${name} is damaged`;
    }
    return null;
  } catch (error) {
    if (error instanceof SyntaxError) return 'manifest.json is damaged';
    if (errnoOf(error) === 'ENOENT') return 'a file of it is missing';
    throw error;
  }
}
