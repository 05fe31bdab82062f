/**
 * Reads one OpenSSH public key line (`type base64 [comment]`), strictly: RFC 4253 section 6.6 (rsa),
 * RFC 5656 section 3.1 (ecdsa), RFC 8709 (ed25519), and OpenSSH's PROTOCOL.u2f (sk- types). Certificates,
 * dsa, private keys, options, several lines and trailing bytes are refused.
 */
import { invalid } from '../../shared/errors.ts';
import { fingerprintOf } from '../../shared/ssh-fingerprint.ts';

export interface PublicKey {
  readonly type: string;
  /** `type base64`, no comment. */
  readonly line: string;
  readonly comment: string;
  /** `SHA256:` and base64 without padding, as `ssh-keygen -l` prints. */
  readonly fingerprint: string;
}

const MAX_LENGTH = 16_384;
const RSA_MIN_BITS = 2048;
const RSA_MAX_BITS = 16_384;

/** Bytes of an uncompressed point for each curve. */
const CURVE_POINT_BYTES: Record<string, number> = { nistp256: 65, nistp384: 97, nistp521: 133 };

function refuse(issue: string): never {
  throw invalid('public_key', issue);
}

class Reader {
  readonly #bytes: Buffer;
  #at = 0;
  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }
  field(): Buffer {
    if (this.#at + 4 > this.#bytes.length) refuse('the key is cut short');
    const length = this.#bytes.readUInt32BE(this.#at);
    const start = this.#at + 4;
    if (length > this.#bytes.length - start) refuse('the key is cut short');
    this.#at = start + length;
    return this.#bytes.subarray(start, start + length);
  }
  text(): string {
    return this.field().toString('latin1');
  }
  end(): void {
    if (this.#at !== this.#bytes.length) refuse('there are bytes after the key');
  }
}

/** An mpint's bits. It must be positive and in its shortest form. */
function mpintBits(bytes: Buffer): number {
  const first = bytes[0];
  if (first === undefined || first >= 0x80) return refuse('a number in the key is not positive');
  if (first === 0 && (bytes[1] ?? 0) < 0x80) return refuse('a number in the key is not in its shortest form');
  const skip = first === 0 ? 1 : 0;
  return (bytes.length - skip - 1) * 8 + (32 - Math.clz32(bytes[skip] ?? 0));
}

function readEd25519(reader: Reader): void {
  if (reader.field().length !== 32) refuse('an ed25519 key has 32 bytes');
}

function readEcdsa(reader: Reader, curve: string): void {
  if (reader.text() !== curve) refuse('the curve does not match the type');
  const point = reader.field();
  if (point.length !== CURVE_POINT_BYTES[curve] || point[0] !== 4)
    refuse('the point is not one of that curve');
}

function readRsa(reader: Reader): void {
  mpintBits(reader.field());
  const bits = mpintBits(reader.field());
  if (bits < RSA_MIN_BITS) refuse(`an rsa key needs at least ${RSA_MIN_BITS} bits; this one has ${bits}`);
  if (bits > RSA_MAX_BITS) refuse(`an rsa key has at most ${RSA_MAX_BITS} bits`);
}

function readApplication(reader: Reader): void {
  if (!/^ssh:[\x20-\x7e]{0,200}$/.test(reader.text()))
    refuse('the application of a security key starts with ssh:');
}

/** A map: the type is the caller's word, and every object has a `constructor`. */
const READERS = new Map<string, (reader: Reader) => void>([
  ['ssh-ed25519', readEd25519],
  ['ssh-rsa', readRsa],
  ['ecdsa-sha2-nistp256', (reader) => readEcdsa(reader, 'nistp256')],
  ['ecdsa-sha2-nistp384', (reader) => readEcdsa(reader, 'nistp384')],
  ['ecdsa-sha2-nistp521', (reader) => readEcdsa(reader, 'nistp521')],
  [
    'sk-ssh-ed25519@openssh.com',
    (reader) => {
      readEd25519(reader);
      readApplication(reader);
    },
  ],
  [
    'sk-ecdsa-sha2-nistp256@openssh.com',
    (reader) => {
      readEcdsa(reader, 'nistp256');
      readApplication(reader);
    },
  ],
]);

export const KEY_TYPES = [...READERS.keys()];

/** @throws AppError INVALID_REQUEST on `public_key`, with the problem */
export function parsePublicKey(text: string): PublicKey {
  const line = text.replace(/\r?\n$/, '');
  if (line.length > MAX_LENGTH) refuse(`a key has at most ${MAX_LENGTH} characters`);
  if (line.includes('PRIVATE KEY'))
    refuse('that is a private key: keep it secret, and send the .pub file instead');
  if (/[\r\n\0]/.test(line)) refuse('exactly one line is expected');
  const [type = '', base64 = '', ...rest] = line.trim().split(/[ \t]+/);
  const read = READERS.get(type);
  if (!read) {
    if (type.includes('-cert-v0')) refuse('certificates are not accepted; send the plain public key');
    refuse(
      `"${type.slice(0, 60)}" is no accepted key type (${KEY_TYPES.join(', ')}); options before the key are not accepted`,
    );
  }
  if (!/^[A-Za-z0-9+/]+={0,2}$/.test(base64)) refuse('the second word must be the key in base64');
  const blob = Buffer.from(base64, 'base64');
  if (blob.toString('base64').replace(/=+$/, '') !== base64.replace(/=+$/, ''))
    refuse('the key is not proper base64');
  const reader = new Reader(blob);
  if (reader.text() !== type) refuse('the encoded key is of another type than the line says');
  read(reader);
  reader.end();
  const canonical = `${type} ${blob.toString('base64')}`;
  return { type, line: canonical, comment: rest.join(' '), fingerprint: fingerprintOf(canonical) };
}
