/**
 * Encrypts and decrypts the objects of a disk with AES-256-GCM, and derives the keys for that from the disk's data
 * keys. Data keys are in memory only: they are never written and never logged.
 *
 * A nonce is {u32 type, u64 counter}. Types: 0 frame, 1 directory of a segment, 2 piece of a map, 3 part of a memory
 * image. Each nonce is used once under its key: counters rise within an attempt to write, and each attempt has a new
 * salt, and so a new key. The additional authenticated data says where the bytes belong. So a frame of another disk,
 * generation or block does not decrypt.
 */
import {
  createCipheriv,
  createDecipheriv,
  createSecretKey,
  hkdfSync,
  type KeyObject,
  randomBytes,
} from 'node:crypto';
import { assert } from '../shared/assert.ts';

export const TAG_BYTES = 16;
const ALGORITHM = 'aes-256-gcm';
const NONCE_OF = { frame: 0, directory: 1, piece: 2, memory: 3 } as const;
const DISK_ID_BYTES = 64;
const FRAME_AAD_BYTES = 90;

/** The disk, epoch and generation that frames belong to. */
export interface FrameHome {
  readonly disk_id: string;
  readonly epoch: number;
  readonly generation: number;
}

/** Encrypts and decrypts the frames of one attempt. */
export class FrameCipher {
  /** A KeyObject, because Node makes one of plain bytes for each frame, which costs as much as the encryption. */
  readonly #key: KeyObject;
  /** 0 disk id, 64 u64 epoch, 72 u64 generation, 80 u64 block number, 88 u16 kind */
  readonly #aad = Buffer.alloc(FRAME_AAD_BYTES);

  constructor(key: Uint8Array, { disk_id, epoch, generation }: FrameHome) {
    assert(disk_id.length <= DISK_ID_BYTES, 'a disk id fits its field');
    this.#key = createSecretKey(key);
    this.#aad.write(disk_id, 0, 'latin1');
    this.#aad.writeBigUInt64LE(BigInt(epoch), 64);
    this.#aad.writeBigUInt64LE(BigInt(generation), 72);
  }

  /** Ciphertext and tag. */
  seal(block: number, kind: number, counter: number, plain: Uint8Array): readonly [Buffer, Buffer] {
    return seal(this.#key, nonce('frame', counter), this.#aadOf(block, kind), plain);
  }

  /** Undefined when `stored` is not this block's frame, encrypted with this counter and key. */
  open(block: number, kind: number, counter: number, stored: Uint8Array): Buffer | undefined {
    return open(this.#key, nonce('frame', counter), this.#aadOf(block, kind), stored);
  }

  #aadOf(block: number, kind: number): Buffer {
    this.#aad.writeBigUInt64LE(BigInt(block), 80);
    this.#aad.writeUInt16LE(kind, 88);
    return this.#aad;
  }
}

type Part = 'directory' | 'piece' | 'memory';

/** Encrypts a segment's directory, a piece of a map or a part of a memory image. Returns ciphertext and tag. */
export function sealPart(
  what: Part,
  key: Uint8Array,
  counter: number,
  aad: Uint8Array,
  plain: Uint8Array,
): readonly [Buffer, Buffer] {
  return seal(key, nonce(what, counter), aad, plain);
}

/** `stored` is ciphertext and tag. Undefined when it does not decrypt. */
export function openPart(
  what: Part,
  key: Uint8Array,
  counter: number,
  aad: Uint8Array,
  stored: Uint8Array,
): Buffer | undefined {
  return open(key, nonce(what, counter), aad, stored);
}

function nonce(what: keyof typeof NONCE_OF, counter: number): Buffer {
  assert(Number.isInteger(counter) && counter >= 0 && counter < 2 ** 32, 'a nonce counter is a u32');
  const bytes = Buffer.alloc(12);
  bytes.writeUInt32LE(NONCE_OF[what], 0);
  bytes.writeBigUInt64LE(BigInt(counter), 4);
  return bytes;
}

function seal(
  key: KeyObject | Uint8Array,
  iv: Buffer,
  aad: Uint8Array,
  plain: Uint8Array,
): readonly [Buffer, Buffer] {
  const cipher = createCipheriv(ALGORITHM, key, iv, { authTagLength: TAG_BYTES }).setAAD(aad);
  const sealed = cipher.update(plain);
  assert(cipher.final().length === 0, 'GCM holds nothing back');
  return [sealed, cipher.getAuthTag()];
}

function open(
  key: KeyObject | Uint8Array,
  iv: Buffer,
  aad: Uint8Array,
  stored: Uint8Array,
): Buffer | undefined {
  if (stored.length < TAG_BYTES) return undefined;
  const end = stored.length - TAG_BYTES;
  const decipher = createDecipheriv(ALGORITHM, key, iv, { authTagLength: TAG_BYTES })
    .setAAD(aad)
    .setAuthTag(stored.subarray(end));
  const plain = decipher.update(stored.subarray(0, end));
  try {
    decipher.final();
  } catch {
    return undefined;
  }
  return plain;
}

const DATA_KEY_BYTES = 32;
export const KEY_ID_BYTES = 16;
export const SALT_BYTES = 32;
const KEY_ID = /^dk_[0-9a-f]{32}$/;

/** The purpose of a derived key. Part of the format. */
export const PURPOSE = {
  segment: 'berth segment v2',
  map: 'berth map v1',
  memory: 'berth memory v1',
} as const;
export type Purpose = (typeof PURPOSE)[keyof typeof PURPOSE];

export interface DataKey {
  /** `dk_` and 32 hex digits: 16 random bytes. */
  readonly key_id: string;
  /** 32 random bytes. */
  readonly key: Uint8Array;
}

/** Which key an object is encrypted with. Public. */
export interface Encryption {
  readonly key_id: string;
  readonly salt: Uint8Array;
}

/** The key of one attempt to write. */
export interface AttemptKey {
  readonly encryption: Encryption;
  readonly key: Uint8Array;
}

/**
 * The data keys of a disk's reader or writer, and the keys derived from them. They are in memory only: never written,
 * never logged.
 *
 * A data key encrypts nothing itself. Each flush attempt, map and suspend draws a salt of 32 random bytes and encrypts with
 * HKDF-SHA-256(data key, salt, purpose). So no two attempts share a key, and counters can be nonces.
 */
export class KeyRing {
  /** For disks that are not encrypted. */
  static readonly none: KeyRing = new KeyRing([]);
  readonly #keys: ReadonlyMap<string, Uint8Array>;

  constructor(keys: Iterable<DataKey>) {
    this.#keys = new Map([...keys].map(({ key_id, key }) => [key_id, key]));
  }

  /** The key that an object was encrypted with. Undefined without its data key. */
  derive({ key_id, salt }: Encryption, purpose: Purpose): Uint8Array | undefined {
    const key = this.#keys.get(key_id);
    return key && deriveKey(key, salt, purpose);
  }
}

/** A new, random data key. */
export function newDataKey(): DataKey {
  return { key_id: keyIdText(randomBytes(KEY_ID_BYTES)), key: randomBytes(DATA_KEY_BYTES) };
}

/** A key for one attempt to write, with a new salt. */
export function newAttemptKey(data_key: DataKey, purpose: Purpose): AttemptKey {
  const encryption = { key_id: data_key.key_id, salt: randomBytes(SALT_BYTES) };
  return { encryption, key: deriveKey(data_key.key, encryption.salt, purpose) };
}

export function keyIdText(bytes: Uint8Array): string {
  return `dk_${Buffer.from(bytes).toString('hex')}`;
}

export function keyIdBytes(key_id: string): Buffer {
  assert(KEY_ID.test(key_id), 'a key id is dk_ and 32 hex digits');
  return Buffer.from(key_id.slice(3), 'hex');
}

function deriveKey(key: Uint8Array, salt: Uint8Array, purpose: Purpose): Uint8Array {
  assert(key.length === DATA_KEY_BYTES && salt.length === SALT_BYTES, 'a data key and a salt have 32 bytes');
  return new Uint8Array(hkdfSync('sha256', key, salt, purpose, 32));
}
