/**
 * Reads and writes map objects. A map object says where blocks of a generation are stored, so that a reader needs not
 * the directory of every segment. A full map has all blocks. A delta has the blocks that differ from the parent
 * generation, also those that equal the base image again.
 *
 * First comes the format, version 1, as functions on buffers (docs/disk-format.md has the layout). Then `writeMap`
 * makes an object from changes, and `readMap` applies one to a block map. If `readMap` fails, the block map is half
 * changed and must not be used.
 */
import { createHash, type Hash, randomBytes } from 'node:crypto';
import { setImmediate as turn } from 'node:timers/promises';
import { ObjectExistsError, type ObjectStore } from '../object-store/object-store.ts';
import { assert } from '../shared/assert.ts';
import { inSlices } from '../shared/concurrency.ts';
import type { BlockLocation, BlockMap, SegmentSource } from './block-map.ts';
import {
  type AttemptKey,
  type DataKey,
  type Encryption,
  KEY_ID_BYTES,
  type KeyRing,
  keyIdBytes,
  keyIdText,
  newAttemptKey,
  openPart,
  PURPOSE,
  SALT_BYTES,
  sealPart,
  TAG_BYTES,
} from './frame-cipher.ts';
import {
  asCorrupt,
  BLOCK_BYTES,
  FRAME_KIND,
  HASH_BYTES,
  hasLegalLength,
  isFrameKind,
  SEGMENT_MAX_BYTES,
  SegmentCorruptError,
  type SegmentEntry,
} from './segment-format.ts';

const MAP_HEADER_BYTES = 160;
const MAP_DIGEST_BYTES = 32;
/** A piece of the body, before encryption. */
export const MAP_PIECE_BYTES = 1024 * 1024;
const ENTRY_BYTES = 40;
const SEGMENT_FIXED_BYTES = 136;
const KEY_MAX_BYTES = 1_024;
const MAGIC = Buffer.from('BERTHMAP', 'latin1');
const VERSION = 1;
const FLAG_FULL = 1;
const FLAG_ENCRYPTED = 2;
const DISK_ID_BYTES = 64;
/** The kind, in a delta, of a block that equals the base image again. */
const KIND_ABSENT = 3;
const PRINTABLE = /^[\x21-\x7e]+$/;
const DISK_ID = /^[\x21-\x7e]{1,64}$/;

/** The disk, generation and attempt that a map belongs to. */
export interface MapIdentity {
  readonly disk_id: string;
  readonly disk_bytes: number;
  readonly generation: number;
  /** u32, random */
  readonly attempt: number;
  readonly full: boolean;
  readonly encryption: Encryption | null;
}

export interface MapHeader {
  readonly identity: MapIdentity;
  readonly segment_count: number;
  readonly entry_count: number;
  readonly body_bytes: number;
}

/** A block's new place. `to` null: the block equals the base image's. */
export interface MapChange {
  readonly block: number;
  readonly to: BlockLocation | null;
}

/** The body of a map before it is cut and encrypted, as parts to concatenate. */
export interface MapBody {
  readonly segment_count: number;
  readonly entry_count: number;
  readonly body_bytes: number;
  readonly parts: readonly Buffer[];
}

/** `/map/<generation>-<attempt>` below the disk's prefix. */
function mapKey(prefix: string, { generation, attempt }: MapIdentity): string {
  assert(Number.isInteger(attempt) && attempt >= 0 && attempt < 2 ** 32, 'an attempt is a u32');
  return `${prefix}/map/${generation}-${attempt.toString(16).padStart(8, '0')}`;
}

const KEY = /\/map\/(\d{1,16})-([0-9a-f]{8})$/;

/** Ignores keys of another form. @throws SegmentCorruptError when the key names another map */
function verifyMapKey(key: string, identity: MapIdentity): void {
  const match = KEY.exec(key);
  const said = mapKey('', identity);
  if (match && said !== match[0]) {
    throw new SegmentCorruptError(key, `holds another map (${said.slice(1)})`);
  }
}

/** The total size of a map with this header, in bytes. */
function mapBytes({ identity, body_bytes }: MapHeader): number {
  const tags = identity.encryption ? pieceCount(body_bytes) * TAG_BYTES : 0;
  return MAP_HEADER_BYTES + body_bytes + tags + MAP_DIGEST_BYTES;
}

function pieceCount(body_bytes: number): number {
  return Math.max(1, Math.ceil(body_bytes / MAP_PIECE_BYTES));
}

/** Encodes changes, which must be in the order of block numbers. */
async function encodeBody(changes: Iterable<MapChange | undefined>, full: boolean): Promise<MapBody> {
  const table = new SegmentTable();
  const chunks: Buffer[] = [];
  let chunk = Buffer.alloc(0);
  let at = 0;
  let entry_count = 0;
  let before = -1;
  await inSlices(changes, ({ block, to }) => {
    assert(block > before, 'a map is in the order of its blocks');
    assert(to !== null || !full, 'a full map omits blocks that equal the base image');
    before = block;
    if (at === chunk.length) {
      chunk = Buffer.alloc(4_096 * ENTRY_BYTES);
      chunks.push(chunk);
      at = 0;
    }
    encodeEntry(chunk.subarray(at, at + ENTRY_BYTES), block, to, to ? table.numberOf(to.segment) : 0);
    at += ENTRY_BYTES;
    entry_count += 1;
  });
  const last = chunks.pop();
  const parts = [...table.parts, ...chunks, ...(last ? [last.subarray(0, at)] : [])];
  const body_bytes = parts.reduce((sum, { length }) => sum + length, 0);
  return { segment_count: table.parts.length, entry_count, body_bytes, parts };
}

class SegmentTable {
  readonly parts: Buffer[] = [];
  readonly #numbers = new Map<string, number>();

  numberOf(segment: SegmentSource): number {
    const known = this.#numbers.get(segment.key);
    if (known !== undefined) return known;
    this.#numbers.set(segment.key, this.parts.length);
    this.parts.push(encodeSegment(segment));
    return this.parts.length - 1;
  }
}

function encodeSegment({ key, size_bytes, epoch, generation, disk_id, encryption }: SegmentSource): Buffer {
  assert(PRINTABLE.test(key) && key.length <= KEY_MAX_BYTES, 'a key is printable ASCII');
  const out = Buffer.alloc(2 + key.length + SEGMENT_FIXED_BYTES);
  out.writeUInt16LE(key.length, 0);
  out.write(key, 2, 'latin1');
  const at = 2 + key.length;
  out.writeBigUInt64LE(BigInt(size_bytes), at);
  out.writeBigUInt64LE(BigInt(epoch), at + 8);
  out.writeBigUInt64LE(BigInt(generation), at + 16);
  out.write(disk_id, at + 24, 'latin1');
  if (encryption) {
    keyIdBytes(encryption.key_id).copy(out, at + 88);
    out.set(encryption.salt, at + 104);
  }
  return out;
}

function encodeEntry(out: Buffer, block: number, to: BlockLocation | null, segment: number): void {
  out.writeUInt32LE(block, 0);
  if (!to) {
    out.writeUInt16LE(KIND_ABSENT, 16);
    return;
  }
  out.writeUInt32LE(segment, 4);
  out.writeUInt32LE(to.offset, 8);
  out.writeUInt32LE(to.stored_bytes, 12);
  out.writeUInt16LE(to.kind, 16);
  out.writeUInt32LE(to.mark, 20);
  out.set(to.hash, 24);
}

function encodeMapHeader({ identity, segment_count, entry_count, body_bytes }: MapHeader): Buffer {
  const { encryption, full } = identity;
  assert(DISK_ID.test(identity.disk_id), 'a disk id is 1 to 64 printable ASCII characters');
  const out = Buffer.alloc(MAP_HEADER_BYTES);
  MAGIC.copy(out, 0);
  out.writeUInt16LE(VERSION, 8);
  out.writeUInt16LE((full ? FLAG_FULL : 0) | (encryption ? FLAG_ENCRYPTED : 0), 10);
  out.writeUInt32LE(identity.attempt, 12);
  out.writeBigUInt64LE(BigInt(identity.generation), 16);
  out.writeBigUInt64LE(BigInt(identity.disk_bytes), 24);
  out.writeUInt32LE(segment_count, 32);
  out.writeUInt32LE(entry_count, 36);
  out.writeBigUInt64LE(BigInt(body_bytes), 40);
  out.write(identity.disk_id, 48, 'latin1');
  if (encryption) {
    keyIdBytes(encryption.key_id).copy(out, 112);
    out.set(encryption.salt, 128);
  }
  return out;
}

/** Checks the header on its own only. @throws SegmentCorruptError */
function decodeMapHeader(key: string, bytes: Buffer): MapHeader {
  const fail = (problem: string): never => {
    throw new SegmentCorruptError(key, problem);
  };
  if (bytes.length < MAP_HEADER_BYTES || !bytes.subarray(0, 8).equals(MAGIC)) fail('is no map');
  const version = bytes.readUInt16LE(8);
  if (version !== VERSION) fail(`map version ${version} is unknown`);
  const flags = bytes.readUInt16LE(10);
  if ((flags & ~(FLAG_FULL | FLAG_ENCRYPTED)) !== 0) fail('unknown flags are set');
  const encryption = decodeEncryption(bytes, 112);
  if ((encryption !== null) !== ((flags & FLAG_ENCRYPTED) !== 0))
    fail('its flag and its key contradict each other');
  const identity: MapIdentity = {
    disk_id: decodeDiskId(key, bytes, 48),
    disk_bytes: safe(key, bytes.readBigUInt64LE(24)),
    generation: safe(key, bytes.readBigUInt64LE(16)),
    attempt: bytes.readUInt32LE(12),
    full: (flags & FLAG_FULL) !== 0,
    encryption,
  };
  const header: MapHeader = {
    identity,
    segment_count: bytes.readUInt32LE(32),
    entry_count: bytes.readUInt32LE(36),
    body_bytes: safe(key, bytes.readBigUInt64LE(40)),
  };
  const least = header.segment_count * (3 + SEGMENT_FIXED_BYTES) + header.entry_count * ENTRY_BYTES;
  if (header.body_bytes < least) fail('its counts are more than its body holds');
  return header;
}

export type MapItem =
  | { readonly segment: SegmentSource }
  | { readonly entry: SegmentEntry; readonly segment_number: number }
  | { readonly absent: number };

/** Decodes the body of a map piece by piece, in bounded memory. An item may span two pieces. */
class MapBodyDecoder {
  readonly #key: string;
  readonly #header: MapHeader;
  readonly #blocks_end: number;
  readonly #segments: SegmentSource[] = [];
  #entries = 0;
  #before = -1;
  #rest: Buffer = Buffer.alloc(0);

  constructor(key: string, header: MapHeader) {
    this.#key = key;
    this.#header = header;
    this.#blocks_end = Math.ceil(header.identity.disk_bytes / BLOCK_BYTES);
  }

  /** @throws SegmentCorruptError */
  *take(piece: Buffer): Generator<MapItem> {
    const bytes = this.#rest.length === 0 ? piece : Buffer.concat([this.#rest, piece]);
    let at = 0;
    for (;;) {
      const length = this.#nextBytes(bytes, at);
      if (length === undefined || at + length > bytes.length) break;
      yield this.#decode(bytes.subarray(at, at + length));
      at += length;
    }
    this.#rest = Buffer.from(bytes.subarray(at));
  }

  /** @throws SegmentCorruptError unless the body has exactly the items that its header announces */
  end(): void {
    const { segment_count, entry_count } = this.#header;
    const whole = this.#segments.length === segment_count && this.#entries === entry_count;
    if (!whole || this.#rest.length > 0) this.#fail('its body is not what its header says');
  }

  /** The size of the item at `at`. Undefined when more bytes are needed, or at the end. */
  #nextBytes(bytes: Buffer, at: number): number | undefined {
    const { segment_count, entry_count } = this.#header;
    if (this.#segments.length === segment_count) {
      return this.#entries < entry_count ? ENTRY_BYTES : undefined;
    }
    if (at + 2 > bytes.length) return undefined;
    const key_bytes = bytes.readUInt16LE(at);
    if (key_bytes < 1 || key_bytes > KEY_MAX_BYTES) this.#fail('a key in its table has a wrong length');
    return 2 + key_bytes + SEGMENT_FIXED_BYTES;
  }

  #decode(bytes: Buffer): MapItem {
    if (this.#segments.length === this.#header.segment_count) return this.#decodeEntry(bytes);
    const segment = this.#decodeSegment(bytes);
    this.#segments.push(segment);
    return { segment };
  }

  #decodeSegment(bytes: Buffer): SegmentSource {
    const at = bytes.length - SEGMENT_FIXED_BYTES;
    const key = bytes.toString('latin1', 2, at);
    if (!PRINTABLE.test(key)) this.#fail('a key in its table is malformed');
    return {
      key,
      size_bytes: safe(this.#key, bytes.readBigUInt64LE(at)),
      epoch: safe(this.#key, bytes.readBigUInt64LE(at + 8)),
      generation: safe(this.#key, bytes.readBigUInt64LE(at + 16)),
      disk_id: decodeDiskId(this.#key, bytes, at + 24),
      encryption: decodeEncryption(bytes, at + 88),
    };
  }

  #decodeEntry(bytes: Buffer): MapItem {
    const block = bytes.readUInt32LE(0);
    const kind = bytes.readUInt16LE(16);
    if (block <= this.#before) this.#fail('is out of order', block);
    if (block >= this.#blocks_end) this.#fail('is past the end of the disk', block);
    if (bytes.readUInt16LE(18) !== 0) this.#fail('unknown flags are set', block);
    this.#before = block;
    this.#entries += 1;
    if (kind === KIND_ABSENT && !this.#header.identity.full) return { absent: block };
    const segment_number = bytes.readUInt32LE(4);
    const segment = this.#segments[segment_number];
    if (!segment) throw new SegmentCorruptError(this.#key, 'is in a segment that is not there', { block });
    if (!isFrameKind(kind)) throw new SegmentCorruptError(this.#key, `kind ${kind} is not known`, { block });
    const [offset, stored_bytes] = [bytes.readUInt32LE(8), bytes.readUInt32LE(12)];
    const inside = offset + stored_bytes <= Math.min(segment.size_bytes, SEGMENT_MAX_BYTES);
    if (!inside || !hasLegalLength(kind, stored_bytes, segment.encryption !== null)) {
      this.#fail('lies where no frame can be', block);
    }
    const mark = bytes.readUInt32LE(20);
    if (kind === FRAME_KIND.zero && mark !== 0) this.#fail('is zero, and has a mark', block);
    const hash = Uint8Array.prototype.slice.call(bytes, 24, 24 + HASH_BYTES);
    return { segment_number, entry: { block, offset, stored_bytes, kind, mark, hash } };
  }

  #fail(problem: string, block?: number): never {
    throw new SegmentCorruptError(this.#key, problem, block === undefined ? {} : { block });
  }
}

function decodeEncryption(bytes: Buffer, at: number): Encryption | null {
  const named = bytes.subarray(at, at + KEY_ID_BYTES + SALT_BYTES);
  if (named.every((byte) => byte === 0)) return null;
  return {
    key_id: keyIdText(named.subarray(0, KEY_ID_BYTES)),
    salt: Uint8Array.prototype.slice.call(named, KEY_ID_BYTES),
  };
}

function decodeDiskId(key: string, bytes: Buffer, at: number): string {
  const disk_id = bytes.toString('latin1', at, at + DISK_ID_BYTES).replace(/\0+$/, '');
  if (!DISK_ID.test(disk_id)) throw new SegmentCorruptError(key, 'a disk id is malformed');
  return disk_id;
}

function safe(key: string, value: bigint): number {
  if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw new SegmentCorruptError(key, 'a number is out of range');
  return Number(value);
}

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
