/**
 * The data keys of a disk's reader or writer, and the keys derived from them. They are in memory only: never written,
 * never logged.
 *
 * A data key encrypts nothing itself. Each flush attempt, map and suspend draws a salt of 32 random bytes and encrypts with
 * HKDF-SHA-256(data key, salt, purpose). So no two attempts share a key, and counters can be nonces.
 */
import { hkdfSync, randomBytes } from 'node:crypto';
import { assert } from '../shared/assert.ts';

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
