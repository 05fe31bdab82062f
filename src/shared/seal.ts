/**
 * Seals small values with AES-256-GCM, under a key per purpose that is derived from the root key by HKDF-SHA-256 (RFC 5869).
 * Layout: 12 bytes nonce, ciphertext, 16 bytes tag.
 */
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';

const NONCE_BYTES = 12;
const TAG_BYTES = 16;

/** 32 bytes for one purpose; `purpose` names it and never changes. */
export function deriveKey(root_key: Uint8Array, purpose: string): Buffer {
  return Buffer.from(hkdfSync('sha256', root_key, '', purpose, 32));
}

export class Sealer {
  readonly #key: Buffer;

  constructor(root_key: Uint8Array, purpose: string) {
    this.#key = deriveKey(root_key, purpose);
  }

  /** Opening it requires the same `bound_to`. */
  seal(plain: string, bound_to: string): Buffer {
    const nonce = randomBytes(NONCE_BYTES);
    const cipher = createCipheriv('aes-256-gcm', this.#key, nonce).setAAD(Buffer.from(bound_to));
    return Buffer.concat([nonce, cipher.update(plain, 'utf8'), cipher.final(), cipher.getAuthTag()]);
  }

  /** null: it was sealed with another key or `bound_to`, or was changed. */
  open(sealed: Buffer, bound_to: string): string | null {
    if (sealed.length < NONCE_BYTES + TAG_BYTES) return null;
    try {
      const decipher = createDecipheriv('aes-256-gcm', this.#key, sealed.subarray(0, NONCE_BYTES), {
        authTagLength: TAG_BYTES,
      })
        .setAAD(Buffer.from(bound_to))
        .setAuthTag(sealed.subarray(-TAG_BYTES));
      const text = decipher.update(sealed.subarray(NONCE_BYTES, -TAG_BYTES));
      return Buffer.concat([text, decipher.final()]).toString('utf8');
    } catch {
      return null;
    }
  }
}
