/**
 * The access token of a sandbox. The package `e2b` sends it, and not the API key, with commands and files. It is the API key,
 * encrypted for one sandbox: so the adapter keeps no list of tokens, a token of one sandbox opens no other, and a revoked API
 * key revokes them all.
 */
import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto';
import { closeSync, openSync, readFileSync, writeSync } from 'node:fs';
import { Failure } from './failures.ts';

const CIPHER = 'aes-256-gcm';
const KEY_BYTES = 32;
const NONCE_BYTES = 12;
const TAG_BYTES = 16;
const MAX_TOKEN_CHARACTERS = 4096;

export class AccessTokens {
  readonly #key: Buffer;
  constructor(key: Buffer) {
    if (key.length !== KEY_BYTES) throw new Error(`The key has ${key.length} bytes instead of ${KEY_BYTES}.`);
    this.#key = key;
  }

  seal(sandbox_id: string, api_key: string): string {
    const nonce = randomBytes(NONCE_BYTES);
    const cipher = createCipheriv(CIPHER, this.#key, nonce).setAAD(Buffer.from(sandbox_id));
    const sealed = Buffer.concat([cipher.update(api_key, 'utf8'), cipher.final()]);
    return Buffer.concat([nonce, cipher.getAuthTag(), sealed]).toString('base64url');
  }

  /** Returns the API key. @throws Failure unauthenticated */
  open(sandbox_id: string, token: string): string {
    const bytes = Buffer.from(token.slice(0, MAX_TOKEN_CHARACTERS), 'base64url');
    try {
      const nonce = bytes.subarray(0, NONCE_BYTES);
      const decipher = createDecipheriv(CIPHER, this.#key, nonce, { authTagLength: TAG_BYTES });
      decipher.setAAD(Buffer.from(sandbox_id));
      decipher.setAuthTag(bytes.subarray(NONCE_BYTES, NONCE_BYTES + TAG_BYTES));
      const sealed = bytes.subarray(NONCE_BYTES + TAG_BYTES);
      return Buffer.concat([decipher.update(sealed), decipher.final()]).toString('utf8');
    } catch (cause) {
      const message = 'The access token is not valid for this sandbox. Sandbox.connect() returns a new one.';
      throw new Failure('unauthenticated', message, { cause });
    }
  }
}

/** The key in `path`, which is made if there is none; without a path one that ends with this process. */
export function readKey(path: string | undefined): Buffer {
  if (path === undefined) return randomBytes(KEY_BYTES);
  try {
    const file = openSync(path, 'wx', 0o600);
    writeSync(file, randomBytes(KEY_BYTES));
    closeSync(file);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
  return readFileSync(path);
}
