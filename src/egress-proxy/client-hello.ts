/**
 * Reads the server name (SNI) and the protocols (ALPN) from a TLS ClientHello (RFC 8446, 6066, 7301). The message may
 * be split over TCP segments and TLS records at any byte. Pure.
 *
 * A ClientHello that two readers could understand differently is refused: two names, two such extensions, lengths that
 * do not add up, an empty record, many small records. With Encrypted ClientHello, the name is the outer one: only guest
 * and server can decrypt the inner one.
 */
import { createHash } from 'node:crypto';
import { sentName } from '../shared/egress-policy.ts';

/** The longest message that is read. Real ones have up to some 4 KiB. */
const HELLO_MAX_BYTES = 16 * 1024;
/** It is read again with each segment, so that records of one byte would cost much time. */
const RECORDS_MAX = 64;

const RECORD_HEADER_BYTES = 5;
const RECORD_MAX_BYTES = 16_384;
/** Some more than servers take of it. */
const EARLY_DATA_MAX_BYTES = 64 * 1024;
const CHANGE_CIPHER_SPEC = 20;
const HANDSHAKE = 22;
const APPLICATION_DATA = 23;
const CLIENT_HELLO = 1;
const SERVER_HELLO = 2;
const RETRY_RANDOM = createHash('sha256').update('HelloRetryRequest').digest();
const SERVER_NAME = 0;
const HOST_NAME = 0;
const ALPN = 16;

export interface ReadHello {
  /** null: it has none that is a host name. */
  readonly name: string | null;
  /** What the client offers to speak; empty: it does not say. */
  readonly protocols: readonly string[];
  /** Of the connection, up to its end. */
  readonly bytes: number;
}

/** `more`: not complete yet. `not tls`: no ClientHello that can be understood. */
export type Hello = 'more' | 'not tls' | ReadHello;

/** `received`: everything of the connection so far. */
export function readClientHello(received: Buffer): Hello {
  const parts: Buffer[] = [];
  let at = 0;
  while (received[at] === HANDSHAKE) {
    if (at + 1 < received.length && received[at + 1] !== 3) return 'not tls';
    if (at + RECORD_HEADER_BYTES > received.length) return 'more';
    const length = received.readUInt16BE(at + 3);
    if (length === 0 || length > RECORD_MAX_BYTES || parts.length === RECORDS_MAX) return 'not tls';
    at += RECORD_HEADER_BYTES;
    parts.push(received.subarray(at, at + length));
    at += length;
  }
  const message = readMessage(Buffer.concat(parts));
  if (message === 'not tls') return message;
  // Other records (early data) may follow a whole message.
  if (at < received.length) return message === 'more' ? 'not tls' : { ...message, bytes: at };
  if (message !== 'more' && at === received.length) return { ...message, bytes: at };
  return received.length > 2 * HELLO_MAX_BYTES ? 'not tls' : 'more';
}

/** The hello that a server asked for by its answer to the first one. `received`: what came behind that. Early data may precede it. */
export function readRetriedHello(received: Buffer): Hello {
  let at = 0;
  for (;;) {
    const type = received[at];
    if (type === HANDSHAKE) return readClientHello(received.subarray(at));
    if (at > EARLY_DATA_MAX_BYTES) return 'not tls';
    if (type !== undefined && type !== CHANGE_CIPHER_SPEC && type !== APPLICATION_DATA) return 'not tls';
    if (at + RECORD_HEADER_BYTES > received.length) return 'more';
    at += RECORD_HEADER_BYTES + received.readUInt16BE(at + 3);
  }
}

/**
 * Whether a server's first word asks for another hello (HelloRetryRequest, RFC 8446 §4.1.4): a ServerHello with this number in place of
 * a random one.
 */
export function asksForRetry(said: Buffer): boolean | 'more' {
  if (said.length > 0 && said[0] !== HANDSHAKE) return false;
  if (said.length > RECORD_HEADER_BYTES && said[RECORD_HEADER_BYTES] !== SERVER_HELLO) return false;
  const from = RECORD_HEADER_BYTES + 4 + 2;
  if (said.length < from + RETRY_RANDOM.length) return 'more';
  return said.subarray(from, from + RETRY_RANDOM.length).equals(RETRY_RANDOM);
}

type Message = 'more' | 'not tls' | Omit<ReadHello, 'bytes'>;

function readMessage(bytes: Buffer): Message {
  if (bytes.length > 0 && bytes[0] !== CLIENT_HELLO) return 'not tls';
  if (bytes.length < 4) return 'more';
  const length = bytes.readUIntBE(1, 3);
  if (length > HELLO_MAX_BYTES) return 'not tls';
  if (bytes.length < 4 + length) return 'more';
  // Nothing of this kind follows before the server has answered.
  if (bytes.length > 4 + length) return 'not tls';
  try {
    return readExtensions(new Reader(bytes.subarray(4)));
  } catch (error) {
    if (error instanceof RangeError) return 'not tls';
    throw error;
  }
}

/** @throws RangeError when the message is malformed */
function readExtensions(hello: Reader): Omit<ReadHello, 'bytes'> {
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
