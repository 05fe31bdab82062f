/**
 * An NBD client on a unix socket: pipelined, with a limit on the bytes in flight.
 *
 * Invariants: each request settles once; a broken connection rejects all pending and later requests; requests above the
 * server's maximum are split.
 */
import { createConnection, type Socket } from 'node:net';
import { assert } from '../../shared/assert.ts';
import { ByteBudget } from './byte-budget.ts';
import { chooseExport, NbdProtocolError, type ServedExport } from './nbd-client-handshake.ts';
import { type AllocationExtent, NbdReplies } from './nbd-client-replies.ts';
import { encodeRequest, NBD_CMD, NBD_CMD_FLAG, NBD_TRANSMISSION } from './nbd-protocol.ts';
import { SocketReader } from './socket-reader.ts';

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
