/**
 * Encodes and decodes segments, version 2. A segment is an immutable object with some blocks of one disk: frames (the
 * stored blocks), a directory that describes them, and a trailer. Pure functions on buffers; `frame-codec.ts` packs
 * and unpacks the frames. docs/disk-format.md is the full description, for writing a reader.
 *
 * If a segment is encrypted, its frames and directory are AES-256-GCM (`frame-cipher.ts`), which hides content, hashes
 * and block numbers. Reading the directory detects a swapped, cut, foreign or corrupt object. Reading a frame detects
 * that the frame is corrupt.
 */
import { createHash } from 'node:crypto';
import { ObjectNotFoundError, ObjectRangeError } from '../object-store/object-store.ts';
import { assert } from '../shared/assert.ts';
import {
  type AttemptKey,
  type Encryption,
  KEY_ID_BYTES,
  type KeyRing,
  keyIdBytes,
  keyIdText,
  openPart,
  PURPOSE,
  SALT_BYTES,
  sealPart,
  TAG_BYTES,
} from './frame-cipher.ts';

/*
 * The layout of a segment: frames, directory, trailer. Integers are little-endian.
 *
 * Frames: without gaps, in the directory's order, at most SEGMENT_MAX_BYTES together.
 *   raw   the 65,536 bytes of the block    zstd   one zstd frame, shorter than the block    zero   no bytes
 *   encrypted: ciphertext and a tag of 16 bytes
 *   If the disk's size is not a multiple of 64 KiB, its last block is padded with zeroes.
 *
 * Directory: one entry of 40 bytes for each block, at most SEGMENT_MAX_ENTRIES, no block twice.
 *    0  u64  block number (byte offset on the disk / 65,536), below 2^32
 *    8  u32  offset of the frame in the object (for zero blocks: where it would be)
 *   12  u32  stored length of the frame in bytes
 *   16  u16  kind: 0 raw, 1 zstd, 2 zero
 *   18  u16  zero (reserved for flags)
 *   20  u32  mark: the counter in the frame's nonce if encrypted, else the CRC-32 of the stored bytes; 0 for zero blocks
 *   24  16   first 128 bits of the SHA-256 of the 65,536 uncompressed bytes: what a reader verifies
 *
 * Trailer: 224 bytes.
 *    0  8    magic "BERTHSEG"
 *    8  u16  format version, 2
 *   10  u16  flags: bit 0 last segment of its generation; bit 1 encrypted; others zero
 *   12  u32  part: 0, 1, 2… within the generation
 *   16  u32  parts: their number, in the last one; else 0
 *   20  u32  attempt: random number of the flush attempt (part of the object's key)
 *   24  u64  epoch
 *   32  u64  generation
 *   40  u64  size of the disk in bytes
 *   48  u32  number of entries
 *   52  u32  offset of the directory = length of the frames
 *   56  u32  length of the directory
 *   60  u32  zero (reserved)
 *   64  64   disk id, ASCII, padded with zero bytes
 *  128  16   id of the data key; zeroes when not encrypted
 *  144  32   salt of the attempt; zeroes when not encrypted
 *  176  16   tag of the directory (also authenticates the 176 bytes before it); zeroes when not encrypted
 *  192  32   SHA-256 of the directory as stored followed by the trailer's first 192 bytes
 */

export const BLOCK_BYTES = 65_536;
/** Bytes of all frames of one segment. */
export const SEGMENT_MAX_BYTES = 16 * 1024 * 1024;
/** Entries in one segment, so its directory takes at most 640 KiB. */
export const SEGMENT_MAX_ENTRIES = 16_384;
/** Block numbers are below this, so a disk has at most 256 TiB. */
export const BLOCK_NUMBER_LIMIT = 2 ** 32;
export const ENTRY_BYTES = 40;
export const TRAILER_BYTES = 224;
export const HASH_BYTES = 16;

const MAGIC = Buffer.from('BERTHSEG', 'latin1');
const VERSION = 2;
const FLAG_LAST = 1;
const FLAG_ENCRYPTED = 2;
const DISK_ID_AT = 64;
const DISK_ID_BYTES = 64;
const KEY_ID_AT = 128;
const SALT_AT = 144;
const TAG_AT = 176;
const DIGEST_AT = 192;
const DISK_ID = /^[\x21-\x7e]{1,64}$/;

/** How a block is stored, with the format's numbers. */
export const FRAME_KIND = { raw: 0, zstd: 1, zero: 2 } as const;
export type FrameKind = (typeof FRAME_KIND)[keyof typeof FRAME_KIND];

/** An object is not the expected segment. The message has key and problem. Retrying does not help. */
export class SegmentCorruptError extends Error {
  override name = 'SegmentCorruptError';
  readonly key: string;
  readonly problem: string;
  readonly block: number | undefined;

  constructor(key: string, problem: string, options: { block?: number; cause?: unknown } = {}) {
    const where = options.block === undefined ? '' : ` block ${options.block}:`;
    super(`segment ${key}:${where} ${problem}`, { cause: options.cause });
    this.key = key;
    this.problem = problem;
    this.block = options.block;
  }
}

/** The disk, generation and attempt that a segment belongs to. */
export interface SegmentIdentity {
  readonly disk_id: string;
  readonly disk_bytes: number;
  readonly epoch: number;
  readonly generation: number;
  /** u32 */
  readonly attempt: number;
  readonly part: number;
  readonly last: boolean;
  readonly encryption: Encryption | null;
}

/** One block to write. Its frame's offset follows from the order. */
export interface NewEntry {
  readonly block: number;
  readonly kind: FrameKind;
  readonly stored_bytes: number;
  /** The counter in the nonce if encrypted, else the CRC-32 of the stored bytes; 0 for zero blocks. */
  readonly mark: number;
  readonly hash: Uint8Array;
}

export interface SegmentEntry extends NewEntry {
  readonly offset: number;
}

/** The validated directory of a segment. */
export interface SegmentDirectory {
  readonly key: string;
  readonly size_bytes: number;
  readonly identity: SegmentIdentity;
  readonly entries: readonly SegmentEntry[];
}

export interface SegmentTrailer {
  readonly identity: SegmentIdentity;
  readonly entry_count: number;
  readonly directory_offset: number;
}

/** The size of directory and trailer for `entry_count` entries, in bytes. */
export function tailBytes(entry_count: number): number {
  return entry_count * ENTRY_BYTES + TRAILER_BYTES;
}

/**
 * Encodes the directory and trailer that follow the frames of `entries`. `key` is the attempt's key if the identity names
 * an encryption, else null.
 */
export function encodeTail(
  identity: SegmentIdentity,
  entries: readonly NewEntry[],
  key: AttemptKey | null,
): Buffer {
  assert(entries.length <= SEGMENT_MAX_ENTRIES, 'a segment has a bounded number of entries');
  assert(DISK_ID.test(identity.disk_id), 'a disk id is 1 to 64 printable ASCII characters');
  assert(identity.encryption === (key?.encryption ?? null), 'the identity names the key that is used');
  const out = Buffer.alloc(tailBytes(entries.length));
  let offset = 0;
  for (const [i, entry] of entries.entries()) {
    encodeEntry(out, i * ENTRY_BYTES, entry, { offset, encrypted: key !== null });
    offset += entry.stored_bytes;
  }
  assert(offset <= SEGMENT_MAX_BYTES, 'the frames of a segment fit its bound');
  const trailer = out.subarray(entries.length * ENTRY_BYTES);
  encodeTrailer(trailer, identity, entries.length, offset);
  if (key) {
    const directory = out.subarray(0, entries.length * ENTRY_BYTES);
    const aad = trailer.subarray(0, TAG_AT);
    const [sealed, tag] = sealPart('directory', key.key, identity.part, aad, directory);
    sealed.copy(directory);
    tag.copy(trailer, TAG_AT);
  }
  digestOf(out, entries.length).copy(trailer, DIGEST_AT);
  return out;
}

/** The trailer without tag and digest. */
function encodeTrailer(
  trailer: Buffer,
  identity: SegmentIdentity,
  entry_count: number,
  offset: number,
): void {
  const { encryption, last, part } = identity;
  MAGIC.copy(trailer, 0);
  trailer.writeUInt16LE(VERSION, 8);
  trailer.writeUInt16LE((last ? FLAG_LAST : 0) | (encryption ? FLAG_ENCRYPTED : 0), 10);
  trailer.writeUInt32LE(part, 12);
  trailer.writeUInt32LE(last ? part + 1 : 0, 16);
  trailer.writeUInt32LE(identity.attempt, 20);
  trailer.writeBigUInt64LE(BigInt(identity.epoch), 24);
  trailer.writeBigUInt64LE(BigInt(identity.generation), 32);
  trailer.writeBigUInt64LE(BigInt(identity.disk_bytes), 40);
  trailer.writeUInt32LE(entry_count, 48);
  trailer.writeUInt32LE(offset, 52);
  trailer.writeUInt32LE(entry_count * ENTRY_BYTES, 56);
  trailer.write(identity.disk_id, DISK_ID_AT, 'latin1');
  if (!encryption) return;
  keyIdBytes(encryption.key_id).copy(trailer, KEY_ID_AT);
  trailer.set(encryption.salt, SALT_AT);
}

/**
 * Decodes the trailer at the end of `tail`, the last bytes of an object of `size_bytes`. It does not verify the digest:
 * use it only to learn how long a tail {@link decodeDirectory} needs.
 * @throws SegmentCorruptError
 */
export function decodeTrailer(key: string, size_bytes: number, tail: Buffer): SegmentTrailer {
  const fail = (problem: string): never => {
    throw new SegmentCorruptError(key, problem);
  };
  if (size_bytes < TRAILER_BYTES || tail.length < TRAILER_BYTES) fail('too short for a trailer');
  const at = tail.subarray(tail.length - TRAILER_BYTES);
  if (!at.subarray(0, 8).equals(MAGIC)) fail('no segment, or cut short: its last bytes are not a trailer');
  const version = at.readUInt16LE(8);
  if (version !== VERSION) fail(`format version ${version} is unknown`);
  const flags = at.readUInt16LE(10);
  if ((flags & ~(FLAG_LAST | FLAG_ENCRYPTED)) !== 0 || at.readUInt32LE(60) !== 0)
    fail('unknown flags are set');
  const entry_count = at.readUInt32LE(48);
  const directory_offset = at.readUInt32LE(52);
  if (entry_count > SEGMENT_MAX_ENTRIES) fail('too many entries');
  if (directory_offset > SEGMENT_MAX_BYTES) fail('too many bytes of frames');
  if (at.readUInt32LE(56) !== entry_count * ENTRY_BYTES) fail('the directory has a wrong length');
  if (directory_offset + tailBytes(entry_count) !== size_bytes) {
    fail(
      `it has ${size_bytes} bytes where its trailer says ${directory_offset + tailBytes(entry_count)}: cut or swapped`,
    );
  }
  const last = (flags & FLAG_LAST) !== 0;
  const part = at.readUInt32LE(12);
  if (at.readUInt32LE(16) !== (last ? part + 1 : 0)) fail('the count of parts contradicts the part number');
  const identity: SegmentIdentity = {
    disk_id: decodeDiskId(key, at),
    disk_bytes: safe(key, at.readBigUInt64LE(40)),
    epoch: safe(key, at.readBigUInt64LE(24)),
    generation: safe(key, at.readBigUInt64LE(32)),
    attempt: at.readUInt32LE(20),
    part,
    last,
    encryption: decodeEncryption(key, at, (flags & FLAG_ENCRYPTED) !== 0),
  };
  return { identity, entry_count, directory_offset };
}

/**
 * Decodes and verifies directory and trailer. `tail` is at least the last {@link tailBytes} of an object of `size_bytes`.
 * @throws SegmentCorruptError
 */
export function decodeDirectory(
  key: string,
  size_bytes: number,
  tail: Buffer,
  keys: KeyRing,
): SegmentDirectory {
  const { identity, entry_count, directory_offset } = decodeTrailer(key, size_bytes, tail);
  if (tail.length < tailBytes(entry_count)) {
    throw new SegmentCorruptError(key, 'the bytes read do not include its directory');
  }
  const bytes = tail.subarray(tail.length - tailBytes(entry_count));
  const digest = bytes.subarray(entry_count * ENTRY_BYTES + DIGEST_AT);
  if (!digest.equals(digestOf(bytes, entry_count))) {
    throw new SegmentCorruptError(key, 'the checksum of its directory does not match');
  }
  const directory = openDirectory(key, bytes, entry_count, identity, keys);
  const entries = decodeEntries(key, directory, entry_count, identity);
  const last = entries.at(-1);
  if ((last ? last.offset + last.stored_bytes : 0) !== directory_offset) {
    throw new SegmentCorruptError(key, 'the entries do not cover its frames');
  }
  return { key, size_bytes, identity, entries };
}

/** The decrypted directory. */
function openDirectory(
  key: string,
  bytes: Buffer,
  entry_count: number,
  { encryption, part }: SegmentIdentity,
  keys: KeyRing,
): Buffer {
  const length = entry_count * ENTRY_BYTES;
  if (!encryption) return bytes.subarray(0, length);
  const segment_key = keys.derive(encryption, PURPOSE.segment);
  if (!segment_key) {
    throw new SegmentCorruptError(
      key,
      `is encrypted with a key that the disk does not have (${encryption.key_id})`,
    );
  }
  const tag = bytes.subarray(length + TAG_AT, length + DIGEST_AT);
  const sealed = Buffer.concat([bytes.subarray(0, length), tag]);
  const aad = bytes.subarray(length, length + TAG_AT);
  const directory = openPart('directory', segment_key, part, aad, sealed);
  if (!directory) throw new SegmentCorruptError(key, 'its directory does not decrypt with its key');
  return directory;
}

function decodeEncryption(key: string, trailer: Buffer, encrypted: boolean): Encryption | null {
  if (encrypted) {
    return {
      key_id: keyIdText(trailer.subarray(KEY_ID_AT, KEY_ID_AT + KEY_ID_BYTES)),
      salt: Uint8Array.prototype.slice.call(trailer, SALT_AT, SALT_AT + SALT_BYTES),
    };
  }
  if (trailer.subarray(KEY_ID_AT, DIGEST_AT).some((byte) => byte !== 0)) {
    throw new SegmentCorruptError(key, 'is marked as not encrypted, but names a key');
  }
  return null;
}

function encodeEntry(
  out: Buffer,
  at: number,
  entry: NewEntry,
  { offset, encrypted }: { offset: number; encrypted: boolean },
): void {
  assert(
    Number.isInteger(entry.block) && entry.block >= 0 && entry.block < BLOCK_NUMBER_LIMIT,
    'block number',
  );
  assert(hasLegalLength(entry.kind, entry.stored_bytes, encrypted), 'the stored length fits the kind');
  assert(entry.hash.length === HASH_BYTES, 'a hash has 128 bits');
  out.writeBigUInt64LE(BigInt(entry.block), at);
  out.writeUInt32LE(offset, at + 8);
  out.writeUInt32LE(entry.stored_bytes, at + 12);
  out.writeUInt16LE(entry.kind, at + 16);
  out.writeUInt32LE(entry.mark, at + 20);
  out.set(entry.hash, at + 24);
}

function decodeEntries(
  key: string,
  bytes: Buffer,
  count: number,
  { disk_bytes, encryption }: SegmentIdentity,
): SegmentEntry[] {
  const blocks_end = Math.min(BLOCK_NUMBER_LIMIT, Math.ceil(disk_bytes / BLOCK_BYTES));
  const seen = new Set<number>();
  const entries: SegmentEntry[] = [];
  let expected_offset = 0;
  for (let i = 0; i < count; i++) {
    const at = i * ENTRY_BYTES;
    const block = Number(bytes.readBigUInt64LE(at));
    const offset = bytes.readUInt32LE(at + 8);
    const stored_bytes = bytes.readUInt32LE(at + 12);
    const kind = bytes.readUInt16LE(at + 16);
    const fail = (problem: string): never => {
      throw new SegmentCorruptError(key, problem, { block });
    };
    if (block >= blocks_end) fail('is past the end of the disk');
    if (seen.has(block)) fail('is there twice');
    if (bytes.readUInt16LE(at + 18) !== 0) fail('unknown flags are set');
    if (!isFrameKind(kind)) throw new SegmentCorruptError(key, `kind ${kind} is unknown`, { block });
    if (!hasLegalLength(kind, stored_bytes, encryption !== null))
      fail(`${stored_bytes} stored bytes are impossible for its kind`);
    if (offset !== expected_offset) fail('its frame is not where the one before it ends');
    seen.add(block);
    expected_offset += stored_bytes;
    const hash = Uint8Array.prototype.slice.call(bytes, at + 24, at + 24 + HASH_BYTES);
    entries.push({ block, offset, stored_bytes, kind, mark: bytes.readUInt32LE(at + 20), hash });
  }
  return entries;
}

export function isFrameKind(kind: number): kind is FrameKind {
  return kind === FRAME_KIND.raw || kind === FRAME_KIND.zstd || kind === FRAME_KIND.zero;
}

export function hasLegalLength(kind: FrameKind, stored_bytes: number, encrypted: boolean): boolean {
  if (kind === FRAME_KIND.zero) return stored_bytes === 0;
  const plain_bytes = stored_bytes - (encrypted ? TAG_BYTES : 0);
  if (kind === FRAME_KIND.raw) return plain_bytes === BLOCK_BYTES;
  return plain_bytes > 0 && plain_bytes < BLOCK_BYTES;
}

function decodeDiskId(key: string, trailer: Buffer): string {
  const field = trailer.subarray(DISK_ID_AT, DISK_ID_AT + DISK_ID_BYTES).toString('latin1');
  const disk_id = field.replace(/\0+$/, '');
  if (!DISK_ID.test(disk_id)) throw new SegmentCorruptError(key, 'the disk id is malformed');
  return disk_id;
}

function safe(key: string, value: bigint): number {
  if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw new SegmentCorruptError(key, 'a number is out of range');
  return Number(value);
}

function digestOf(bytes: Buffer, entry_count: number): Buffer {
  return createHash('sha256')
    .update(bytes.subarray(0, entry_count * ENTRY_BYTES + DIGEST_AT))
    .digest();
}

/** Reports a missing or short object as a corrupt segment. Returns any other error unchanged. */
export function asCorrupt(key: string, error: unknown, block?: number): unknown {
  const about = block === undefined ? { cause: error } : { cause: error, block };
  if (error instanceof ObjectNotFoundError)
    return new SegmentCorruptError(key, 'the object is missing', about);
  if (error instanceof ObjectRangeError)
    return new SegmentCorruptError(key, 'the object is cut short', about);
  return error;
}

const KEY = /\/seg\/(\d{1,16})\/(\d{1,16})-([0-9a-f]{8})-(\d{1,10})$/;

type Named = Pick<SegmentIdentity, 'epoch' | 'generation' | 'attempt' | 'part'>;

/** `attempt` (random u32) is 8 hex digits, so that objects of a killed attempt never collide with later ones. */
export function segmentKey(prefix: string, { epoch, generation, attempt, part }: Named): string {
  assert(Number.isInteger(attempt) && attempt >= 0 && attempt < 2 ** 32, 'an attempt is a u32');
  return `${prefix}/seg/${epoch}/${generation}-${attempt.toString(16).padStart(8, '0')}-${part}`;
}

/**
 * Verifies that a segment's trailer agrees with its key, which detects swapped objects. Ignores keys of another form.
 * @throws SegmentCorruptError
 */
export function verifyKey(key: string, identity: SegmentIdentity): void {
  const match = KEY.exec(key);
  if (!match) return;
  const [, epoch, generation, attempt, part] = match;
  const said = segmentKey('', identity);
  if (said !== `/seg/${epoch}/${generation}-${attempt}-${part}`) {
    throw new SegmentCorruptError(key, `holds another segment (${said.slice(1)})`);
  }
}

/** Where all objects of an instance's disk are. */
export function diskPrefix(instance_id: string): string {
  return `disks/${instance_id}`;
}
