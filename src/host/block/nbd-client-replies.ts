/**
 * Matches the server's replies, simple and structured, to the client's requests. An invalid reply ends the connection.
 */
import { NbdProtocolError } from './nbd-client-handshake.ts';
import { NbdError } from './nbd-export.ts';
import {
  NBD_CHUNK,
  NBD_EIO,
  NBD_MAX_PAYLOAD_BYTES,
  NBD_SIMPLE_REPLY_MAGIC,
  NBD_STRUCTURED_REPLY_MAGIC,
} from './nbd-protocol.ts';
import type { SocketReader } from './socket-reader.ts';

/** A range of the export with one status. Consecutive extents are adjacent. */
export interface AllocationExtent {
  readonly length: number;
  /** Nothing is allocated here. */
  readonly hole: boolean;
  /** Reads as zeroes. */
  readonly zero: boolean;
}

interface Expectation {
  readonly offset: number;
  /** The buffer for a read's data. */
  readonly into: Buffer | undefined;
  readonly extents: AllocationExtent[] | undefined;
}

interface Pending extends Expectation {
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
  received_bytes: number;
  error: NbdError | undefined;
}

export class NbdReplies {
  readonly #reader: SocketReader;
  readonly #allocationContext: number | undefined;
  readonly #pending = new Map<bigint, Pending>();
  #ended: Error | undefined;

  constructor(reader: SocketReader, allocation_context: number | undefined) {
    this.#reader = reader;
    this.#allocationContext = allocation_context;
  }

  /** Resolves when the request with this cookie succeeds. @throws NbdError */
  expect(cookie: bigint, expectation: Expectation): Promise<void> {
    if (this.#ended) return Promise.reject(this.#ended);
    return new Promise((resolve, reject) =>
      this.#pending.set(cookie, { ...expectation, resolve, reject, received_bytes: 0, error: undefined }),
    );
  }

  /** Reads replies until the connection ends, then rejects all pending requests. Returns the reason. */
  async run(): Promise<Error> {
    try {
      while (await this.#one());
      this.#ended = new NbdProtocolError('the connection was closed');
    } catch (error) {
      this.#ended = error instanceof Error ? error : new NbdProtocolError(String(error));
    }
    for (const pending of this.#pending.values()) pending.reject(this.#ended);
    this.#pending.clear();
    return this.#ended;
  }

  async #one(): Promise<boolean> {
    const head = await this.#reader.read(16);
    if (!head) return false;
    const magic = head.readUInt32BE(0);
    const cookie = head.readBigUInt64BE(8);
    const pending = this.#pending.get(cookie);
    if (!pending) throw new NbdProtocolError('a reply to no request');
    if (magic === NBD_SIMPLE_REPLY_MAGIC) await this.#simple(cookie, pending, head.readUInt32BE(4));
    else if (magic === NBD_STRUCTURED_REPLY_MAGIC) await this.#chunk(cookie, pending, head);
    else throw new NbdProtocolError('a reply with a wrong magic');
    return true;
  }

  async #simple(cookie: bigint, pending: Pending, errno: number): Promise<void> {
    if (errno !== 0) pending.error = nbdError(errno);
    else if (pending.into) {
      const data = await this.#need(pending.into.length);
      data.copy(pending.into);
      pending.received_bytes = data.length;
    }
    this.#finish(cookie, pending);
  }

  async #chunk(cookie: bigint, pending: Pending, head: Buffer): Promise<void> {
    const flags = head.readUInt16BE(4);
    const type = head.readUInt16BE(6);
    const length = (await this.#need(4)).readUInt32BE(0);
    if (length > NBD_MAX_PAYLOAD_BYTES + 8) throw new NbdProtocolError('a chunk is too large');
    const body = await this.#need(length);
    if (type === NBD_CHUNK.offset_data || type === NBD_CHUNK.offset_hole) this.#fill(pending, type, body);
    else if (type === NBD_CHUNK.block_status) this.#status(pending, body);
    else if (type >= 1 << 15) pending.error ??= nbdError(body.length >= 4 ? body.readUInt32BE(0) : NBD_EIO);
    else if (type !== NBD_CHUNK.none) throw new NbdProtocolError(`chunk type ${type} is unknown`);
    if ((flags & NBD_CHUNK.done) !== 0) this.#finish(cookie, pending);
  }

  #fill(pending: Pending, type: number, body: Buffer): void {
    const hole = type === NBD_CHUNK.offset_hole;
    if (!pending.into || body.length < (hole ? 12 : 8)) throw new NbdProtocolError('a malformed data chunk');
    const at = Number(body.readBigUInt64BE(0)) - pending.offset;
    const length = hole ? body.readUInt32BE(8) : body.length - 8;
    if (at < 0 || at + length > pending.into.length)
      throw new NbdProtocolError('data outside of the request');
    if (hole) pending.into.fill(0, at, at + length);
    else body.copy(pending.into, at, 8);
    pending.received_bytes += length;
  }

  #status(pending: Pending, body: Buffer): void {
    if (!pending.extents || body.length < 12 || body.length % 8 !== 4) {
      throw new NbdProtocolError('a malformed status chunk');
    }
    if (body.readUInt32BE(0) !== this.#allocationContext) return;
    for (let at = 4; at < body.length; at += 8) {
      const state = body.readUInt32BE(at + 4);
      pending.extents.push({
        length: body.readUInt32BE(at),
        hole: (state & 1) !== 0,
        zero: (state & 2) !== 0,
      });
    }
  }

  #finish(cookie: bigint, pending: Pending): void {
    this.#pending.delete(cookie);
    if (pending.error) pending.reject(pending.error);
    else if (pending.into && pending.received_bytes !== pending.into.length) {
      pending.reject(new NbdProtocolError('the reply to a read was too short'));
    } else pending.resolve();
  }

  async #need(length: number): Promise<Buffer> {
    const bytes = await this.#reader.read(length);
    if (!bytes) throw new NbdProtocolError('the connection ended within a reply');
    return bytes;
  }
}

function nbdError(errno: number): NbdError {
  return new NbdError(errno, `the NBD server returned error ${errno}`);
}
