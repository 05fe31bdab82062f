/**
 * Writes a map object from changes, and reads one into a block map. Reading decrypts and applies piece after piece, so a
 * block map is valid only after `readMap` has succeeded.
 */
import { createHash, type Hash, randomBytes } from 'node:crypto';
import { setImmediate as turn } from 'node:timers/promises';
import { ObjectExistsError, type ObjectStore } from '../object-store/object-store.ts';
import { asCorrupt } from './as-corrupt.ts';
import type { BlockMap } from './block-map.ts';
import { openPart, sealPart, TAG_BYTES } from './frame-cipher.ts';
import { type AttemptKey, type DataKey, type KeyRing, newAttemptKey, PURPOSE } from './key-ring.ts';
import {
  decodeMapHeader,
  encodeBody,
  encodeMapHeader,
  MAP_DIGEST_BYTES,
  MAP_HEADER_BYTES,
  MAP_PIECE_BYTES,
  MapBodyDecoder,
  type MapChange,
  type MapHeader,
  mapBytes,
  mapKey,
  pieceCount,
  verifyMapKey,
} from './map-format.ts';
import { SegmentCorruptError } from './segment-format.ts';

/** A map as the database knows it: a layer of a chain. */
export interface MapRef {
  readonly key: string;
  readonly size_bytes: number;
  /** It has all blocks, so no older layer is needed. */
  readonly full: boolean;
  readonly key_id?: string | null;
}

export interface WriteMapOptions {
  readonly store: ObjectStore;
  readonly key_prefix: string;
  readonly disk_id: string;
  readonly disk_bytes: number;
  readonly generation: number;
  readonly full: boolean;
  /** In the order of block numbers: from `wholeMap`, `diffMaps` or `diffSteps`. */
  readonly changes: Iterable<MapChange | undefined>;
  /** Null: not encrypted. */
  readonly data_key: DataKey | null;
  readonly signal?: AbortSignal;
}

export interface WrittenMap extends MapRef {
  readonly key_id: string | null;
  readonly entries: number;
}

/** Writes a map under a new name. Memory: 40 bytes an entry, 80 while it is encrypted. */
export async function writeMap(options: WriteMapOptions): Promise<WrittenMap> {
  const { store, disk_id, disk_bytes, generation, full, data_key, signal } = options;
  const key = data_key && newAttemptKey(data_key, PURPOSE.map);
  const encryption = key?.encryption ?? null;
  const attempt = randomBytes(4).readUInt32LE();
  const identity = { disk_id, disk_bytes, generation, attempt, full, encryption };
  const { parts, ...counts } = await encodeBody(options.changes, full);
  const header: MapHeader = { identity, ...counts };
  const name = mapKey(options.key_prefix, identity);
  const body: Buffer[] = [];
  for (const bytes of encodeObject(header, parts, key)) {
    body.push(bytes);
    if (bytes.length >= MAP_PIECE_BYTES) await turn();
  }
  try {
    await store.put(name, body, signal);
  } catch (error) {
    // The store's own retry may find the object of an attempt whose response was lost.
    if (!(error instanceof ObjectExistsError)) throw error;
    const there = await store.get(name, undefined, signal);
    if (!there.equals(Buffer.concat(body))) throw error;
  }
  const key_id = encryption?.key_id ?? null;
  return { key: name, size_bytes: mapBytes(header), full, key_id, entries: counts.entry_count };
}

function* encodeObject(
  header: MapHeader,
  parts: readonly Buffer[],
  key: AttemptKey | null,
): Generator<Buffer> {
  const hash = createHash('sha256');
  const hashed = (bytes: Buffer): Buffer => {
    hash.update(bytes);
    return bytes;
  };
  const head = encodeMapHeader(header);
  yield hashed(head);
  let number = 0;
  for (const piece of pieces(parts)) {
    const sealed = key ? sealPart('piece', key.key, number, head, piece) : [piece];
    for (const bytes of sealed) yield hashed(bytes);
    number += 1;
  }
  yield hash.digest();
}

/** At least one piece; all but the last are full. */
function* pieces(parts: readonly Buffer[]): Generator<Buffer> {
  let piece: Buffer[] = [];
  let length = 0;
  for (const part of parts) {
    for (let at = 0; at < part.length; ) {
      if (length === MAP_PIECE_BYTES) {
        yield Buffer.concat(piece);
        piece = [];
        length = 0;
      }
      const taken = part.subarray(at, at + MAP_PIECE_BYTES - length);
      piece.push(taken);
      length += taken.length;
      at += taken.length;
    }
  }
  yield Buffer.concat(piece);
}

export interface ReadMapOptions {
  readonly store: ObjectStore;
  readonly ref: MapRef;
  readonly keys: KeyRing;
  /** The disk that the map must belong to. */
  readonly disk_id?: string | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** Applies a map object to `map`. When it throws, `map` is left half changed. @throws SegmentCorruptError */
export async function readMap(map: BlockMap, options: ReadMapOptions): Promise<MapHeader> {
  const { ref, keys } = options;
  const { key } = ref;
  const hash = createHash('sha256');
  const head = await read(options, 0, MAP_HEADER_BYTES);
  const header = verifiedHeader(head, options);
  const { encryption } = header.identity;
  const map_key = encryption && keys.derive(encryption, PURPOSE.map);
  if (encryption && !map_key) {
    throw new SegmentCorruptError(
      key,
      `is encrypted with a key that the disk does not have (${encryption.key_id})`,
    );
  }
  hash.update(head);
  const decoder = new MapBodyDecoder(key, header);
  // The size matches the database's, so the count is not larger than the object.
  if (header.identity.full) map.reserve(header.entry_count);
  const segments: number[] = [];
  for await (const piece of readPieces(options, header, head, map_key ?? null, hash)) {
    for (const item of decoder.take(piece)) {
      if ('segment' in item) segments.push(map.addSegment(item.segment));
      else if ('absent' in item) map.remove(item.absent);
      else map.set(segments[item.segment_number] ?? 0, item.entry);
    }
  }
  decoder.end();
  const digest = await read(options, ref.size_bytes - MAP_DIGEST_BYTES, MAP_DIGEST_BYTES);
  if (!digest.equals(hash.digest())) throw new SegmentCorruptError(key, 'its checksum does not match');
  return header;
}

function verifiedHeader(head: Buffer, { ref, disk_id }: ReadMapOptions): MapHeader {
  const { key } = ref;
  const header = decodeMapHeader(key, head);
  const { identity } = header;
  verifyMapKey(key, identity);
  if (mapBytes(header) !== ref.size_bytes) {
    throw new SegmentCorruptError(key, 'its size is not what its header says: cut or swapped');
  }
  if (identity.full !== ref.full)
    throw new SegmentCorruptError(key, 'is a delta for a full map, or one for a delta');
  if (disk_id !== undefined && disk_id !== identity.disk_id) {
    throw new SegmentCorruptError(key, `belongs to another disk (${identity.disk_id})`);
  }
  if (ref.key_id !== undefined && ref.key_id !== (identity.encryption?.key_id ?? null)) {
    throw new SegmentCorruptError(key, 'is not encrypted with the key that it was written with');
  }
  return header;
}

async function* readPieces(
  options: ReadMapOptions,
  { identity, body_bytes }: MapHeader,
  head: Buffer,
  map_key: Uint8Array | null,
  hash: Hash,
): AsyncGenerator<Buffer> {
  const tag_bytes = identity.encryption ? TAG_BYTES : 0;
  let at = MAP_HEADER_BYTES;
  for (let number = 0; number < pieceCount(body_bytes); number++) {
    const plain_bytes = Math.min(MAP_PIECE_BYTES, body_bytes - number * MAP_PIECE_BYTES);
    const stored = await read(options, at, plain_bytes + tag_bytes);
    at += stored.length;
    hash.update(stored);
    const piece = map_key ? openPart('piece', map_key, number, head, stored) : stored;
    if (!piece) {
      throw new SegmentCorruptError(options.ref.key, `piece ${number} does not decrypt with its key`);
    }
    yield piece;
  }
}

async function read({ store, ref, signal }: ReadMapOptions, offset: number, length: number): Promise<Buffer> {
  if (length === 0) return Buffer.alloc(0);
  try {
    return await store.get(ref.key, { offset, length }, signal);
  } catch (error) {
    throw asCorrupt(ref.key, error);
  }
}
