/**
 * AES-256-GCM as the format uses it, under a key derived for one attempt (`key-ring.ts`).
 *
 * A nonce is {u32 type, u64 counter}. Types: 0 frame, 1 part of a segment, 2 piece of a map, 3 part of a memory image. Each
 * nonce is used once under its key: counters rise within a flush attempt, and a new attempt has a new salt.
 * The additional authenticated data says where the bytes belong. So a frame of another disk, generation or block does not
 * decrypt.
 */
import { createCipheriv, createDecipheriv, createSecretKey, type KeyObject } from 'node:crypto';
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
