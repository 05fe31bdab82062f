/**
 * Uploads base images to the object store, downloads them and removes them. Each file of an image is cut into pieces. A
 * piece is named by its hash, and an index lists the pieces of each file.
 *
 *   images/<image id>/<version>/<sha256 of a piece>   a piece of at most 4 MiB, one zstd frame; none for zeroes
 *   images/<image id>/<version>/index.json            written last: if it exists, the image is complete
 *
 * Invariants:
 * - An upload is verified against the hashes in the image's manifest.
 * - A download is verified piece by piece and as a whole, against an index whose hash the caller knows. Its folder
 *   appears complete or not at all.
 * - One piece is in memory at a time.
 */
import { createHash, type Hash } from 'node:crypto';
import { chmod, type FileHandle, mkdir, open, rename, rm, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { constants, zstdCompress, zstdDecompress } from 'node:zlib';
import { ObjectExistsError, ObjectNotFoundError, type ObjectStore } from '../object-store/object-store.ts';
import { inParallel } from '../shared/concurrency.ts';

export const IMAGE_FILES = ['vmlinuz', 'initrd.img', 'rootfs.img'] as const;
export type ImageFile = (typeof IMAGE_FILES)[number];

/** `manifest.json` of an image. A host has it beside the image's files; the object store has it in the image's index. */
export interface ImageManifest {
  readonly id: string;
  /** Of the recipe; for a custom image, of the input. */
  readonly version: string;
  readonly kernel_release: string;
  /** Of the root file system. */
  readonly size_bytes: number;
  readonly user: string;
  /** SHA-256 of each file. The root file system's is the image's version. */
  readonly files: Readonly<Record<ImageFile, string>>;
}

/** Safe in paths and object keys, and easy to type. */
export const IMAGE_ID = /^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$/;

export function isImageManifest(value: unknown): value is ImageManifest {
  if (typeof value !== 'object' || value === null) return false;
  const { id, version, kernel_release, size_bytes, user, files } = value as Record<string, unknown>;
  return (
    [id, version, kernel_release, user].every((each) => typeof each === 'string') &&
    IMAGE_ID.test(String(id)) &&
    Number.isSafeInteger(size_bytes) &&
    typeof files === 'object' &&
    files !== null &&
    IMAGE_FILES.every((name) => /^[0-9a-f]{64}$/.test(String((files as Record<string, unknown>)[name])))
  );
}

const PIECE_BYTES = 4 * 1024 * 1024;
/** One chunk: zlib's default chunks of 16 KiB take four times as long. */
const UNPACK = { chunkSize: PIECE_BYTES, maxOutputLength: PIECE_BYTES };
const ZEROES = Buffer.alloc(PIECE_BYTES);
const INDEX = 'index.json';
/** Enough for about 250,000 pieces: a tebibyte. */
const INDEX_MAX_BYTES = 24 * 1024 * 1024;
const SIZES_AT_ONCE = 8;
const HASH = /^[0-9a-f]{64}$/;

const compress = promisify(zstdCompress);
const decompress = promisify(zstdDecompress);

interface StoredFile {
  readonly size_bytes: number;
  /** In order; null: zeroes. */
  readonly pieces: readonly (string | null)[];
}

interface ImageIndex {
  readonly format: 1;
  readonly manifest: ImageManifest;
  readonly files: Readonly<Record<ImageFile, StoredFile>>;
}

export interface StoredImage {
  readonly index_sha256: string;
  readonly stored_bytes: number;
}

/** A piece of an image is missing or corrupt. The message names it. */
export class ImageDamagedError extends Error {
  override name = 'ImageDamagedError';
}

export interface Transfer {
  readonly signal?: AbortSignal;
  /** Bytes of the image's files done so far, and in total. */
  readonly progress?: (done_bytes: number, total_bytes: number) => void;
}

export function imagePrefix(id: string, version: string): string {
  return `images/${id}/${version}/`;
}

const versionOf = (manifest: ImageManifest) => manifest.files['rootfs.img'];

/**
 * Uploads the image in `folder`. Pieces of an interrupted upload are reused. A complete image is not read again.
 * @throws ImageDamagedError when a file's hash is not the manifest's; store errors
 */
export async function storeImage(
  store: ObjectStore,
  folder: string,
  manifest: ImageManifest,
  transfer: Transfer = {},
): Promise<StoredImage> {
  const prefix = imagePrefix(manifest.id, versionOf(manifest));
  const there = await store.get(prefix + INDEX).catch((error: unknown) => {
    if (error instanceof ObjectNotFoundError) return null;
    throw error;
  });
  if (there === null) {
    const files = await putFiles(store, prefix, folder, manifest, transfer);
    const index: ImageIndex = { format: 1, manifest, files };
    await putOnce(store, prefix + INDEX, Buffer.from(JSON.stringify(index)), transfer.signal);
  } else if (!sameFiles(parseIndex(there, prefix).manifest, manifest)) {
    throw new ImageDamagedError(`${prefix}${INDEX} in the object store is of another build`);
  }
  // Another process may have written the index first.
  const index = there ?? (await store.get(prefix + INDEX));
  return {
    index_sha256: sha256(index),
    stored_bytes: index.length + (await piecesBytes(store, prefix, index)),
  };
}

/** One by one, because a host on another machine lists nothing. */
async function piecesBytes(store: ObjectStore, prefix: string, index: Buffer): Promise<number> {
  const { files } = parseIndex(index, prefix);
  const pieces = new Set(IMAGE_FILES.flatMap((name) => files[name].pieces).filter((hash) => hash !== null));
  let bytes = 0;
  await inParallel(pieces, SIZES_AT_ONCE, async (hash) => {
    bytes += await store.size(prefix + hash);
  });
  return bytes;
}

async function putFiles(
  store: ObjectStore,
  prefix: string,
  folder: string,
  manifest: ImageManifest,
  { signal, progress }: Transfer,
): Promise<Record<ImageFile, StoredFile>> {
  const sizes = await Promise.all(IMAGE_FILES.map(async (name) => (await stat(join(folder, name))).size));
  const total = sizes.reduce((sum, size) => sum + size, 0);
  let done = 0;
  const files: [ImageFile, StoredFile][] = [];
  for (const name of IMAGE_FILES) {
    const pieces: (string | null)[] = [];
    const whole = createHash('sha256');
    let size_bytes = 0;
    await using file = await open(join(folder, name), 'r');
    for await (const piece of piecesOf(file)) {
      signal?.throwIfAborted();
      whole.update(piece);
      pieces.push(await putPiece(store, prefix, piece, signal));
      size_bytes += piece.length;
      done += piece.length;
      progress?.(done, total);
    }
    if (whole.digest('hex') !== manifest.files[name]) {
      throw new ImageDamagedError(`${join(folder, name)} is not what its manifest says`);
    }
    files.push([name, { size_bytes, pieces }]);
  }
  return Object.fromEntries(files) as Record<ImageFile, StoredFile>;
}

async function* piecesOf(file: FileHandle): AsyncGenerator<Buffer> {
  const buffer = Buffer.alloc(PIECE_BYTES);
  for (let at = 0; ; at += PIECE_BYTES) {
    let length = 0;
    while (length < PIECE_BYTES) {
      const { bytesRead } = await file.read(buffer, length, PIECE_BYTES - length, at + length);
      if (bytesRead === 0) break;
      length += bytesRead;
    }
    if (length > 0) yield buffer.subarray(0, length);
    if (length < PIECE_BYTES) return;
  }
}

async function putPiece(
  store: ObjectStore,
  prefix: string,
  piece: Buffer,
  signal: AbortSignal | undefined,
): Promise<string | null> {
  if (piece.equals(ZEROES.subarray(0, piece.length))) return null;
  const hash = sha256(piece);
  const frame = await compress(piece, { params: { [constants.ZSTD_c_compressionLevel]: 3 } });
  await putOnce(store, prefix + hash, frame, signal);
  return hash;
}

async function putOnce(store: ObjectStore, key: string, body: Buffer, signal?: AbortSignal): Promise<void> {
  await store.put(key, [body], signal).catch((error: unknown) => {
    if (!(error instanceof ObjectExistsError)) throw error;
  });
}

/**
 * Downloads an image into `folder`, which must not exist. @param index_sha256 the index's hash, from the database
 * @throws ImageDamagedError naming the missing or corrupt object; store errors
 */
export async function fetchImage(
  store: ObjectStore,
  { id, version, index_sha256 }: { id: string; version: string; index_sha256: string },
  folder: string,
  { signal, progress }: Transfer = {},
): Promise<ImageManifest> {
  const prefix = imagePrefix(id, version);
  const text = await getObject(store, prefix + INDEX, signal);
  if (sha256(text) !== index_sha256) throw new ImageDamagedError(`${prefix}${INDEX} is damaged`);
  const { manifest, files } = parseIndex(text, prefix);
  if (manifest.id !== id || versionOf(manifest) !== version) {
    throw new ImageDamagedError(`${prefix}${INDEX} is of another image`);
  }
  const total = IMAGE_FILES.reduce((sum, name) => sum + files[name].size_bytes, 0);
  let done = 0;
  // A name that no image has. It is renamed when it is complete.
  const temporary = join(dirname(folder), `.${basename(folder)}.fetching`);
  await rm(temporary, { recursive: true, force: true });
  await mkdir(temporary, { recursive: true });
  try {
    for (const name of IMAGE_FILES) {
      const whole = createHash('sha256');
      await using file = await open(join(temporary, name), 'wx', 0o444);
      await fetchFile(store, prefix, files[name], { file, whole, signal }, (bytes) => {
        done += bytes;
        progress?.(done, total);
      });
      if (whole.digest('hex') !== manifest.files[name]) {
        throw new ImageDamagedError(`${prefix}${INDEX}: ${name} is not what the image's manifest says`);
      }
      await file.sync();
    }
    await writeFile(join(temporary, 'manifest.json'), `${JSON.stringify(manifest)}\n`, {
      mode: 0o444,
      flush: true,
    });
    // Each VM's user reads them, so the umask must not matter.
    for (const name of [...IMAGE_FILES, 'manifest.json']) await chmod(join(temporary, name), 0o444);
    await chmod(temporary, 0o755);
    await rename(temporary, folder);
    await using parent = await open(dirname(folder), 'r');
    await parent.sync();
    return manifest;
  } catch (error) {
    await rm(temporary, { recursive: true, force: true });
    throw error;
  }
}

async function fetchFile(
  store: ObjectStore,
  prefix: string,
  { size_bytes, pieces }: StoredFile,
  to: { file: FileHandle; whole: Hash; signal: AbortSignal | undefined },
  written: (bytes: number) => void,
): Promise<void> {
  // Sparse: zeroes are not written.
  await to.file.truncate(size_bytes);
  for (const [i, hash] of pieces.entries()) {
    to.signal?.throwIfAborted();
    const at = i * PIECE_BYTES;
    const length = Math.min(PIECE_BYTES, size_bytes - at);
    if (hash === null) {
      to.whole.update(ZEROES.subarray(0, length));
    } else {
      const piece = await getPiece(store, prefix + hash, hash, to.signal);
      if (piece.length !== length) throw new ImageDamagedError(`${prefix}${hash} is damaged`);
      to.whole.update(piece);
      for (let done = 0; done < length; ) {
        done += (await to.file.write(piece, done, length - done, at + done)).bytesWritten;
      }
    }
    written(length);
  }
}

/** Reads a corrupt piece once more: the bytes may have changed in transit. */
async function getPiece(
  store: ObjectStore,
  key: string,
  hash: string,
  signal: AbortSignal | undefined,
): Promise<Buffer> {
  for (let attempt = 1; ; attempt++) {
    const frame = await getObject(store, key, signal);
    const piece = await decompress(frame, UNPACK).catch(() => null);
    if (piece !== null && sha256(piece) === hash) return piece;
    if (attempt === 2) throw new ImageDamagedError(`${key} is damaged`);
  }
}

async function getObject(store: ObjectStore, key: string, signal: AbortSignal | undefined): Promise<Buffer> {
  try {
    return await store.get(key, undefined, signal);
  } catch (cause) {
    if (!(cause instanceof ObjectNotFoundError)) throw cause;
    throw new ImageDamagedError(`${key} is missing from the object store`, { cause });
  }
}

/** Whether the store has the image of this index: the index itself, and every piece. */
export async function isImageStored(
  store: ObjectStore,
  { id, version, index_sha256 }: { id: string; version: string; index_sha256: string },
): Promise<boolean> {
  const prefix = imagePrefix(id, version);
  try {
    const index = await store.get(prefix + INDEX);
    if (sha256(index) !== index_sha256) return false;
    await piecesBytes(store, prefix, index);
    return true;
  } catch (error) {
    if (error instanceof ObjectNotFoundError || error instanceof ImageDamagedError) return false;
    throw error;
  }
}

/** Deletes the index first, so that the image no longer exists. Safe to repeat after an interruption. */
export async function removeStoredImage(store: ObjectStore, id: string, version: string): Promise<boolean> {
  const prefix = imagePrefix(id, version);
  const keys: string[] = [];
  for await (const { key } of store.list(prefix)) keys.push(key);
  // Without the index, the remaining objects are not an image.
  await store.delete(prefix + INDEX);
  for (const key of keys) await store.delete(key);
  return keys.length > 0;
}

/** @throws ImageDamagedError */
function parseIndex(text: Buffer, prefix: string): ImageIndex {
  const damaged = new ImageDamagedError(`${prefix}${INDEX} is no index of an image`);
  if (text.length > INDEX_MAX_BYTES) throw damaged;
  let value: ImageIndex;
  try {
    value = JSON.parse(text.toString('utf8')) as ImageIndex;
  } catch {
    throw damaged;
  }
  const isFile = (file: StoredFile | undefined) =>
    file !== undefined &&
    Number.isSafeInteger(file.size_bytes) &&
    Array.isArray(file.pieces) &&
    file.pieces.length === Math.ceil(file.size_bytes / PIECE_BYTES) &&
    file.pieces.every((each) => each === null || HASH.test(each));
  if (value?.format !== 1 || !isImageManifest(value.manifest)) throw damaged;
  if (!IMAGE_FILES.every((name) => isFile(value.files?.[name]))) throw damaged;
  return value;
}

function sameFiles(one: ImageManifest, other: ImageManifest): boolean {
  return IMAGE_FILES.every((name) => one.files[name] === other.files[name]);
}

function sha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}
