/**
 * Defines what nbd-client.ts and nbd-server.ts share: the constants and layouts of the NBD protocol, fixed newstyle
 * (https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md; integers are big-endian); `NbdExport`, the
 * interface of a disk that is served; and `SocketReader`, which reads exact lengths from a socket.
 */
import type { Socket } from 'node:net';
import { assert } from '../../shared/assert.ts';
import { release } from '../../shared/release.ts';

export const NBD_MAGIC = 0x4e42444d41474943n; // "NBDMAGIC"
export const NBD_IHAVEOPT = 0x49484156454f5054n; // "IHAVEOPT"
export const NBD_OPTION_REPLY_MAGIC = 0x3e889045565a9n;
const NBD_REQUEST_MAGIC = 0x25609513;
export const NBD_SIMPLE_REPLY_MAGIC = 0x67446698;
export const NBD_STRUCTURED_REPLY_MAGIC = 0x668e33ef;

/** Handshake flags of both sides. */
export const NBD_FLAG_FIXED_NEWSTYLE = 1;
export const NBD_FLAG_NO_ZEROES = 2;

export const NBD_OPT = {
  export_name: 1,
  abort: 2,
  list: 3,
  info: 6,
  go: 7,
  structured_reply: 8,
  set_meta_context: 10,
} as const;

export const NBD_REP = {
  ack: 1,
  server: 2,
  info: 3,
  meta_context: 4,
  error: 0x80000000,
  err_unsup: 0x80000001,
  err_invalid: 0x80000003,
  err_unknown: 0x80000006,
  err_block_size_required: 0x80000008,
  err_too_big: 0x80000009,
} as const;

export const NBD_INFO = { export: 0, block_size: 3 } as const;

/** Transmission flags: the features of an export. */
export const NBD_TRANSMISSION = {
  has_flags: 1 << 0,
  read_only: 1 << 1,
  send_flush: 1 << 2,
  send_fua: 1 << 3,
  send_trim: 1 << 5,
  send_write_zeroes: 1 << 6,
  can_multi_conn: 1 << 8,
  send_cache: 1 << 10,
  send_fast_zero: 1 << 11,
} as const;

export const NBD_CMD = {
  read: 0,
  write: 1,
  disconnect: 2,
  flush: 3,
  trim: 4,
  cache: 5,
  write_zeroes: 6,
  block_status: 7,
} as const;

export const NBD_CMD_FLAG = { fua: 1 << 0, no_hole: 1 << 1, fast_zero: 1 << 4 } as const;

export const NBD_CHUNK = {
  done: 1 << 0, // a flag
  none: 0,
  offset_data: 1,
  offset_hole: 2,
  block_status: 5,
  error: (1 << 15) + 1,
  error_offset: (1 << 15) + 2,
} as const;

export const NBD_EPERM = 1;
export const NBD_EIO = 5;
export const NBD_EINVAL = 22;
export const NBD_ENOSPC = 28;
export const NBD_EOVERFLOW = 75;

/** Maximum bytes of one READ or WRITE, the same as QEMU's. */
export const NBD_MAX_PAYLOAD_BYTES = 32 * 1024 * 1024;
/** A longer option is malformed: names have at most 4,096 bytes. */
export const NBD_MAX_OPTION_BYTES = 16 * 1024;
export const NBD_MAX_NAME_BYTES = 4_096;

export const REQUEST_BYTES = 28;
const SIMPLE_REPLY_BYTES = 16;

export interface NbdRequest {
  readonly flags: number;
  readonly type: number;
  readonly cookie: bigint;
  readonly offset: bigint;
  readonly length: number;
}

export function encodeRequest({ flags, type, cookie, offset, length }: NbdRequest): Buffer {
  const out = Buffer.allocUnsafe(REQUEST_BYTES);
  out.writeUInt32BE(NBD_REQUEST_MAGIC, 0);
  out.writeUInt16BE(flags, 4);
  out.writeUInt16BE(type, 6);
  out.writeBigUInt64BE(cookie, 8);
  out.writeBigUInt64BE(offset, 16);
  out.writeUInt32BE(length, 24);
  return out;
}

/** Undefined when the magic is wrong. */
export function decodeRequest(bytes: Buffer): NbdRequest | undefined {
  if (bytes.readUInt32BE(0) !== NBD_REQUEST_MAGIC) return undefined;
  return {
    flags: bytes.readUInt16BE(4),
    type: bytes.readUInt16BE(6),
    cookie: bytes.readBigUInt64BE(8),
    offset: bytes.readBigUInt64BE(16),
    length: bytes.readUInt32BE(24),
  };
}

export function encodeSimpleReply(cookie: bigint, errno: number): Buffer {
  const out = Buffer.allocUnsafe(SIMPLE_REPLY_BYTES);
  out.writeUInt32BE(NBD_SIMPLE_REPLY_MAGIC, 0);
  out.writeUInt32BE(errno, 4);
  out.writeBigUInt64BE(cookie, 8);
  return out;
}

export function encodeOption(option: number, data: Buffer): Buffer {
  const head = Buffer.allocUnsafe(16);
  head.writeBigUInt64BE(NBD_IHAVEOPT, 0);
  head.writeUInt32BE(option, 8);
  head.writeUInt32BE(data.length, 12);
  return Buffer.concat([head, data]);
}

export function encodeOptionReply(option: number, type: number, data: Buffer = Buffer.alloc(0)): Buffer {
  const head = Buffer.allocUnsafe(20);
  head.writeBigUInt64BE(NBD_OPTION_REPLY_MAGIC, 0);
  head.writeUInt32BE(option, 8);
  head.writeUInt32BE(type, 12);
  head.writeUInt32BE(data.length, 16);
  return Buffer.concat([head, data]);
}

/** A name inside an option: u32 length and text. */
export function encodeString(text: string): Buffer {
  const bytes = Buffer.from(text, 'utf8');
  const head = Buffer.allocUnsafe(4);
  head.writeUInt32BE(bytes.length, 0);
  return Buffer.concat([head, bytes]);
}

/**
 * A disk that the NBD server serves under a name. Offsets and lengths are in bytes, within `size_bytes`, and multiples of
 * `min_block_bytes`.
 */
export interface NbdExport {
  readonly size_bytes: number;
  readonly read_only: boolean;
  /** A power of two from 1 to 65,536 that divides `size_bytes`. */
  readonly min_block_bytes: number;
  /** Resolves with exactly `length` bytes in a new buffer, which the server releases. */
  read?(offset: number, length: number): Promise<Buffer>;
  /** Buffers for payloads. Without one, the server uses its own. */
  readonly rooms?: PayloadRooms;
  /** Once this settles, the server releases `data`, or gives it back to `rooms`. */
  write?(offset: number, data: Buffer): Promise<void>;
  /** Makes the range read as zeroes, fast for any length. Also used for TRIM. */
  writeZeroes?(offset: number, length: number): Promise<void>;
  flush?(): Promise<void>;
}

/** An export's own buffers for payloads. */
export interface PayloadRooms {
  /** A buffer of `length` bytes with arbitrary content; undefined: none is free. */
  take(length: number): Buffer | undefined;
  /** Called with each buffer after its request, also for one that `write` has kept. */
  give(room: Buffer): void;
}

/** A failure with an NBD error number. The reply to any other error is EIO. */
export class NbdError extends Error {
  override name = 'NbdError';
  /** A Linux errno number, as on the wire. */
  readonly errno: number;

  constructor(errno: number, message: string) {
    super(message);
    this.errno = errno;
  }
}

const HIGH_WATER_BYTES = 256 * 1024;

interface Wanted {
  readonly into: Buffer;
  filled: number;
  readonly resolve: (bytes: Buffer | undefined) => void;
}

/**
 * Exact reads from a socket with bounded buffering: the socket is paused while no read is pending, which gives backpressure.
 * Large reads are filled directly. The socket's chunks are released as soon as they are used up.
 */
export class SocketReader {
  readonly #socket: Socket;
  readonly #chunks: Buffer[] = [];
  #buffered = 0;
  #wanted: Wanted | undefined;
  #ended = false;

  constructor(socket: Socket) {
    this.#socket = socket;
    socket.on('data', (chunk: Buffer) => this.#push(chunk));
    for (const event of ['end', 'close', 'error'] as const) socket.on(event, () => this.stop());
  }

  /** Reads `length` bytes. Undefined when the stream ends first. One read at a time. */
  read(length: number): Promise<Buffer | undefined> {
    return this.fill(Buffer.allocUnsafe(length));
  }

  /** Fills `into` and returns it. Undefined when the stream ends first. One read at a time. */
  fill(into: Buffer): Promise<Buffer | undefined> {
    assert(!this.#wanted, 'one read at a time');
    const { length } = into;
    let filled = 0;
    while (filled < length) {
      const chunk = this.#chunks.shift();
      if (!chunk) break;
      const used = chunk.copy(into, filled, 0, length - filled);
      if (used < chunk.length) this.#chunks.unshift(chunk.subarray(used));
      else release(chunk);
      this.#buffered -= used;
      filled += used;
    }
    if (filled === length) return Promise.resolve(into);
    if (this.#ended) return Promise.resolve(undefined);
    return new Promise((resolve) => {
      this.#wanted = { into, filled, resolve };
      this.#socket.resume();
    });
  }

  /** Ends reading: the pending read, and later ones that the buffer cannot satisfy, return undefined. */
  stop(): void {
    this.#ended = true;
    const wanted = this.#wanted;
    this.#wanted = undefined;
    wanted?.resolve(undefined);
  }

  #push(chunk: Buffer): void {
    let rest = chunk;
    const wanted = this.#wanted;
    if (wanted) {
      const used = chunk.copy(wanted.into, wanted.filled);
      wanted.filled += used;
      rest = chunk.subarray(used);
      if (wanted.filled === wanted.into.length) {
        this.#wanted = undefined;
        wanted.resolve(wanted.into);
      }
    }
    if (rest.length === 0) {
      release(chunk);
      return;
    }
    this.#chunks.push(rest);
    this.#buffered += rest.length;
    if (this.#buffered >= HIGH_WATER_BYTES) this.#socket.pause();
  }
}
