/**
 * Reads the server name (SNI) and the protocols (ALPN) of a TLS ClientHello (RFC 8446, 6066, 7301). Pure. The message may be cut into any segments and records.
 *
 * Anything that two readers could understand differently is refused: two names, two such extensions, lengths that do not add up, an
 * empty record, many small records. With Encrypted ClientHello the name is the outer one: the real one is the guest's and the server's secret.
 */
import { sentName } from '../../lib/egress-policy.ts';

/** The longest message that is read. Real ones have up to some 4 KiB. */
export const HELLO_MAX_BYTES = 16 * 1024;
/** It is read again with each segment, so that records of one byte would cost much time. */
const RECORDS_MAX = 64;

const RECORD_HEADER_BYTES = 5;
const RECORD_MAX_BYTES = 16_384;
const HANDSHAKE = 22;
const CLIENT_HELLO = 1;
const SERVER_NAME = 0;
const HOST_NAME = 0;
const ALPN = 16;

export interface ReadHello {
  /** null: it has none that is a host name. */
  readonly name: string | null;
  /** What the client offers to speak; empty: it does not say. */
  readonly protocols: readonly string[];
}

/** `more`: not complete yet. `not tls`: no ClientHello that can be understood. */
export type Hello = 'more' | 'not tls' | ReadHello;

/** `received`: everything of the connection so far. */
export function readClientHello(received: Buffer): Hello {
  const message = joinRecords(received);
  if (message === 'not tls') return message;
  const { bytes } = message;
  if (bytes.length < 4) return bytes.length > 0 && bytes[0] !== CLIENT_HELLO ? 'not tls' : moreOf(received);
  if (bytes[0] !== CLIENT_HELLO) return 'not tls';
  const length = bytes.readUIntBE(1, 3);
  if (length > HELLO_MAX_BYTES) return 'not tls';
  if (bytes.length < 4 + length) return moreOf(received);
  try {
    return readExtensions(new Reader(bytes.subarray(4, 4 + length)));
  } catch (error) {
    if (error instanceof RangeError) return 'not tls';
    throw error;
  }
}

function moreOf(received: Buffer): Hello {
  return received.length > 2 * HELLO_MAX_BYTES ? 'not tls' : 'more';
}

/** The payload of the records so far, the last one maybe in part. */
function joinRecords(received: Buffer): { readonly bytes: Buffer } | 'not tls' {
  const parts: Buffer[] = [];
  for (let at = 0; at < received.length; ) {
    if (received[at] !== HANDSHAKE) return parts.length === 0 || !isWhole(parts) ? 'not tls' : joined(parts);
    if (at + 1 < received.length && received[at + 1] !== 3) return 'not tls';
    if (at + RECORD_HEADER_BYTES > received.length) break;
    const length = received.readUInt16BE(at + 3);
    if (length === 0 || length > RECORD_MAX_BYTES) return 'not tls';
    if (parts.length === RECORDS_MAX) return 'not tls';
    parts.push(received.subarray(at + RECORD_HEADER_BYTES, at + RECORD_HEADER_BYTES + length));
    at += RECORD_HEADER_BYTES + length;
  }
  return joined(parts);
}

function joined(parts: readonly Buffer[]): { readonly bytes: Buffer } {
  return { bytes: Buffer.concat(parts) };
}

/** Other records (early data) may follow a whole message. */
function isWhole(parts: readonly Buffer[]): boolean {
  const { bytes } = joined(parts);
  return bytes.length >= 4 && bytes.length >= 4 + bytes.readUIntBE(1, 3);
}

/** @throws RangeError when the message is malformed */
function readExtensions(hello: Reader): ReadHello {
  hello.take(2 + 32);
  hello.take(hello.number(1));
  hello.take(hello.number(2));
  hello.take(hello.number(1));
  if (hello.done) return { name: null, protocols: [] };
  const extensions = hello.part(2);
  hello.end();
  const found = new Map<number, Reader>();
  while (!extensions.done) {
    const type = extensions.number(2);
    const content = extensions.part(2);
    if (type !== SERVER_NAME && type !== ALPN) continue;
    if (found.has(type)) throw new RangeError('two extensions of one type');
    found.set(type, content);
  }
  return { name: nameIn(found.get(SERVER_NAME)), protocols: protocolsIn(found.get(ALPN)) };
}

function nameIn(extension: Reader | undefined): string | null {
  if (!extension) return null;
  const list = extension.part(2);
  extension.end();
  if (list.number(1) !== HOST_NAME) return null;
  const name = list.take(list.number(2)).toString('latin1');
  list.end();
  // The name has no final dot (RFC 6066), and servers differ in how they read one.
  return name.endsWith('.') ? null : sentName(name);
}

function protocolsIn(extension: Reader | undefined): string[] {
  if (!extension) return [];
  const list = extension.part(2);
  extension.end();
  const protocols: string[] = [];
  while (!list.done) protocols.push(list.take(list.number(1)).toString('latin1'));
  return protocols;
}

class Reader {
  readonly #bytes: Buffer;
  #at = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  get done(): boolean {
    return this.#at === this.#bytes.length;
  }

  take(length: number): Buffer {
    if (this.#at + length > this.#bytes.length) throw new RangeError('too short');
    this.#at += length;
    return this.#bytes.subarray(this.#at - length, this.#at);
  }

  number(width: number): number {
    return this.take(width).readUIntBE(0, width);
  }

  /** What a length of `width` bytes announces. */
  part(width: number): Reader {
    return new Reader(this.take(this.number(width)));
  }

  end(): void {
    if (!this.done) throw new RangeError('too long');
  }
}
