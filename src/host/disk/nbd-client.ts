/**
 * An NBD client on a Unix socket: it pipelines requests, with a limit on the bytes in flight.
 *
 * Invariants:
 * - Each request settles once. A broken connection rejects all pending and later requests.
 * - Requests above the server's maximum are split.
 */
import { createConnection, type Socket } from 'node:net';
import { assert } from '../../shared/assert.ts';
import { ByteBudget } from './byte-budget.ts';
import {
  encodeOption,
  encodeRequest,
  encodeString,
  NBD_CHUNK,
  NBD_CMD,
  NBD_CMD_FLAG,
  NBD_EIO,
  NBD_FLAG_FIXED_NEWSTYLE,
  NBD_FLAG_NO_ZEROES,
  NBD_IHAVEOPT,
  NBD_INFO,
  NBD_MAGIC,
  NBD_MAX_OPTION_BYTES,
  NBD_MAX_PAYLOAD_BYTES,
  NBD_OPT,
  NBD_OPTION_REPLY_MAGIC,
  NBD_REP,
  NBD_SIMPLE_REPLY_MAGIC,
  NBD_STRUCTURED_REPLY_MAGIC,
  NBD_TRANSMISSION,
  NbdError,
  SocketReader,
} from './nbd-protocol.ts';

/** The server refuses the export, or breaks the protocol. */
export class NbdProtocolError extends Error {
  override name = 'NbdProtocolError';
}

export interface ServedExport {
  readonly size_bytes: number;
  readonly transmission_flags: number;
  readonly min_block_bytes: number;
  readonly max_payload_bytes: number;
  /** The id of the `base:allocation` context. Undefined when the server does not support it with structured replies. */
  readonly allocation_context: number | undefined;
}

interface OptionReply {
  readonly type: number;
  readonly data: Buffer;
}

/**
 * The client side of the fixed newstyle handshake: selects an export with NBD_OPT_GO.
 * @throws NbdProtocolError when the server refuses or breaks the protocol.
 */
async function chooseExport(
  socket: Socket,
  reader: SocketReader,
  export_name: string,
  want_allocation: boolean,
): Promise<ServedExport> {
  const greeting = await need(reader, 18);
  const fixed = (greeting.readUInt16BE(16) & NBD_FLAG_FIXED_NEWSTYLE) !== 0;
  if (greeting.readBigUInt64BE(0) !== NBD_MAGIC || greeting.readBigUInt64BE(8) !== NBD_IHAVEOPT || !fixed) {
    throw new NbdProtocolError('the peer does not speak fixed newstyle NBD');
  }
  const flags = Buffer.alloc(4);
  flags.writeUInt32BE(greeting.readUInt16BE(16) & (NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES));
  socket.write(flags);
  const allocation_context = want_allocation
    ? await negotiateAllocation(socket, reader, export_name)
    : undefined;
  const infos = Buffer.alloc(4);
  infos.writeUInt16BE(1, 0);
  infos.writeUInt16BE(NBD_INFO.block_size, 2);
  const data = Buffer.concat([encodeString(export_name), infos]);
  const replies = await ask(socket, reader, NBD_OPT.go, data);
  return { ...decodeInfos(replies, export_name), allocation_context };
}

async function negotiateAllocation(
  socket: Socket,
  reader: SocketReader,
  export_name: string,
): Promise<number | undefined> {
  const structured = await ask(socket, reader, NBD_OPT.structured_reply, Buffer.alloc(0));
  if (structured.at(-1)?.type !== NBD_REP.ack) return undefined;
  const count = Buffer.alloc(4);
  count.writeUInt32BE(1, 0);
  const query = Buffer.concat([encodeString(export_name), count, encodeString('base:allocation')]);
  const replies = await ask(socket, reader, NBD_OPT.set_meta_context, query);
  const granted = replies.find(({ type, data }) => type === NBD_REP.meta_context && data.length >= 4);
  return granted?.data.readUInt32BE(0);
}

/** Sends an option and collects its replies up to the final one (an ack or an error). */
async function ask(
  socket: Socket,
  reader: SocketReader,
  option: number,
  data: Buffer,
): Promise<readonly OptionReply[]> {
  socket.write(encodeOption(option, data));
  const replies: OptionReply[] = [];
  for (let i = 0; i < 64; i++) {
    const head = await need(reader, 20);
    const length = head.readUInt32BE(16);
    const wrong = head.readBigUInt64BE(0) !== NBD_OPTION_REPLY_MAGIC || head.readUInt32BE(8) !== option;
    if (wrong || length > NBD_MAX_OPTION_BYTES) throw new NbdProtocolError('malformed option reply');
    const type = head.readUInt32BE(12);
    replies.push({ type, data: Buffer.from(await need(reader, length)) });
    if (type === NBD_REP.ack || type >= NBD_REP.error) return replies;
  }
  throw new NbdProtocolError('too many option replies');
}

function decodeInfos(
  replies: readonly OptionReply[],
  export_name: string,
): Omit<ServedExport, 'allocation_context'> {
  const final = replies.at(-1);
  if (final?.type !== NBD_REP.ack) {
    const why = final?.data.toString('utf8') || `option error 0x${final?.type.toString(16)}`;
    throw new NbdProtocolError(`export ${JSON.stringify(export_name)} is refused: ${why}`);
  }
  let size: bigint | undefined;
  let transmission_flags = 0;
  let min_block_bytes = 1;
  let max_payload_bytes = NBD_MAX_PAYLOAD_BYTES;
  for (const { type, data } of replies) {
    if (type !== NBD_REP.info || data.length < 2) continue;
    const info = data.readUInt16BE(0);
    if (info === NBD_INFO.export && data.length === 12) {
      size = data.readBigUInt64BE(2);
      transmission_flags = data.readUInt16BE(10);
    } else if (info === NBD_INFO.block_size && data.length === 14) {
      min_block_bytes = data.readUInt32BE(2);
      max_payload_bytes = Math.min(max_payload_bytes, data.readUInt32BE(10));
    }
  }
  if (size === undefined) throw new NbdProtocolError('the server did not send the size of the export');
  return { size_bytes: Number(size), transmission_flags, min_block_bytes, max_payload_bytes };
}

async function need(reader: SocketReader, length: number): Promise<Buffer> {
  const bytes = await reader.read(length);
  if (!bytes) throw new NbdProtocolError('the server disconnected during the handshake');
  return bytes;
}

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

/** Matches the server's replies, simple and structured, to the client's requests. An invalid reply ends the connection. */
class NbdReplies {
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

export interface NbdConnectOptions {
  readonly path: string;
  readonly export_name: string;
  /** Payload bytes of unanswered requests; 16 MiB by default. */
  readonly in_flight_bytes?: number;
  /** Negotiates `base:allocation`, which {@link NbdClient.blockStatus} needs. */
  readonly allocation?: boolean;
  readonly signal?: AbortSignal;
}

/** The charge of a request without its payload. */
const REQUEST_CHARGE_BYTES = 16 * 1024;
/** Requests without payload are split too, below the u32 limit and aligned. */
const MAX_RANGE_BYTES = 1024 * 1024 * 1024;

export class NbdClient {
  readonly size_bytes: number;
  readonly min_block_bytes: number;
  readonly read_only: boolean;
  readonly #served: ServedExport;
  readonly #socket: Socket;
  readonly #budget: ByteBudget;
  readonly #replies: NbdReplies;
  readonly #closed: Promise<void>;
  #nextCookie = 1n;

  private constructor(socket: Socket, reader: SocketReader, served: ServedExport, in_flight_bytes: number) {
    this.#socket = socket;
    this.#served = served;
    this.size_bytes = served.size_bytes;
    this.min_block_bytes = served.min_block_bytes;
    this.read_only = (served.transmission_flags & NBD_TRANSMISSION.read_only) !== 0;
    this.#budget = new ByteBudget(in_flight_bytes);
    this.#replies = new NbdReplies(reader, served.allocation_context);
    this.#closed = new Promise((resolve) => socket.once('close', () => resolve()));
    void this.#replies.run().then((cause) => {
      this.#budget.fail(cause);
      socket.destroy();
    });
  }

  /**
   * Connects and selects an export.
   * @throws NbdProtocolError when it is refused; the system's error when nobody listens.
   */
  static async connect(options: NbdConnectOptions): Promise<NbdClient> {
    const { path, export_name, in_flight_bytes = 16 * 1024 * 1024, allocation = false, signal } = options;
    signal?.throwIfAborted();
    const socket = createConnection(path);
    const onAbort = (): void => {
      socket.destroy();
    };
    signal?.addEventListener('abort', onAbort, { once: true });
    try {
      await new Promise<void>((resolve, reject) => {
        socket.once('connect', resolve);
        socket.once('error', reject);
        socket.once('close', () => reject(new NbdProtocolError('the connection was closed')));
      });
      socket.on('error', () => {}); // the reader sees the end
      const reader = new SocketReader(socket);
      const served = await chooseExport(socket, reader, export_name, allocation);
      return new NbdClient(socket, reader, served, in_flight_bytes);
    } catch (error) {
      socket.destroy();
      signal?.throwIfAborted();
      throw error;
    } finally {
      signal?.removeEventListener('abort', onAbort);
    }
  }

  /** Writes `data` at `offset` (bytes). It must not change until this settles. @throws NbdError */
  async write(offset: number, data: Uint8Array): Promise<void> {
    await this.#split(offset, data.length, this.#served.max_payload_bytes, (at, length) => {
      const part = data.subarray(at - offset, at - offset + length);
      return this.#request(NBD_CMD.write, 0, at, length, part);
    });
  }

  /** Makes a range read as zeroes; `no_hole` keeps it allocated. @throws NbdError */
  async writeZeroes(offset: number, length: number, { no_hole = false } = {}): Promise<void> {
    const flags = no_hole ? NBD_CMD_FLAG.no_hole : 0;
    await this.#split(offset, length, MAX_RANGE_BYTES, (at, part_length) =>
      this.#request(NBD_CMD.write_zeroes, flags, at, part_length),
    );
  }

  /** Discards a range. @throws NbdError */
  async trim(offset: number, length: number): Promise<void> {
    await this.#split(offset, length, MAX_RANGE_BYTES, (at, part_length) =>
      this.#request(NBD_CMD.trim, 0, at, part_length),
    );
  }

  /** Reads `length` bytes at `offset`. @throws NbdError */
  async read(offset: number, length: number): Promise<Buffer> {
    const out = Buffer.allocUnsafe(length);
    await this.#split(offset, length, this.#served.max_payload_bytes, (at, part_length) => {
      const into = out.subarray(at - offset, at - offset + part_length);
      return this.#request(NBD_CMD.read, 0, at, part_length, undefined, into);
    });
    return out;
  }

  /** Makes the server prefetch a range. QEMU copies it into an overlay. @throws NbdError */
  async cache(offset: number, length: number): Promise<void> {
    assert((this.#served.transmission_flags & NBD_TRANSMISSION.send_cache) !== 0, 'the server can cache');
    await this.#split(offset, length, this.#served.max_payload_bytes, (at, part_length) =>
      this.#request(NBD_CMD.cache, 0, at, part_length),
    );
  }

  /** Makes all acknowledged writes durable. @throws NbdError */
  async flush(): Promise<void> {
    if ((this.#served.transmission_flags & NBD_TRANSMISSION.send_flush) === 0) return;
    await this.#request(NBD_CMD.flush, 0, 0, 0);
  }

  /**
   * The allocation of a range, by `base:allocation`. Returns at least the first extent, and may stop before the range's end:
   * continue from there. Needs `allocation: true` at connect, and a server that supports it.
   */
  async blockStatus(offset: number, length: number): Promise<readonly AllocationExtent[]> {
    assert(this.#served.allocation_context !== undefined, 'base:allocation was negotiated');
    const extents: AllocationExtent[] = [];
    const asked = Math.min(length, MAX_RANGE_BYTES);
    await this.#request(NBD_CMD.block_status, 0, offset, asked, undefined, undefined, extents);
    return extents;
  }

  /** Says goodbye and closes; call when nothing is under way. */
  async disconnect(): Promise<void> {
    if (!this.#socket.destroyed && this.#socket.writable) {
      this.#socket.end(
        encodeRequest({
          flags: 0,
          type: NBD_CMD.disconnect,
          cookie: this.#nextCookie++,
          offset: 0n,
          length: 0,
        }),
      );
    }
    await this.#closed;
  }

  /** Cuts the connection: all that is under way rejects. */
  destroy(): void {
    this.#socket.destroy();
  }

  async #split(
    offset: number,
    length: number,
    most: number,
    send: (at: number, length: number) => Promise<void>,
  ): Promise<void> {
    assert(
      offset >= 0 && length >= 0 && offset + length <= this.size_bytes,
      'a range lies within the export',
    );
    const parts: Promise<void>[] = [];
    for (let at = offset; at < offset + length; at += most) {
      parts.push(send(at, Math.min(most, offset + length - at)));
    }
    await Promise.all(parts);
  }

  async #request(
    type: number,
    flags: number,
    offset: number,
    length: number,
    payload?: Uint8Array,
    into?: Buffer,
    extents?: AllocationExtent[],
  ): Promise<void> {
    const charge_bytes = REQUEST_CHARGE_BYTES + (payload || into ? length : 0);
    if (!this.#budget.tryTake(charge_bytes)) await this.#budget.take(charge_bytes);
    try {
      const cookie = this.#nextCookie++;
      const reply = this.#replies.expect(cookie, { offset, into, extents });
      this.#socket.cork();
      this.#socket.write(encodeRequest({ flags, type, cookie, offset: BigInt(offset), length }));
      if (payload) this.#socket.write(payload);
      this.#socket.uncork();
      await reply;
    } finally {
      this.#budget.give(charge_bytes);
    }
  }
}
