/**
 * An NBD server on a Unix socket, serving exports by name. Fixed newstyle handshake, simple replies.
 *
 * Invariants:
 * - A misbehaving peer ends only its own connection. Connections are limited in number and memory.
 * - Exports can be added and removed at any time. After `close` or `removeExport` the exports are not called.
 */

import { chmod, chown, lstat, unlink } from 'node:fs/promises';
import { createServer, type Server, type Socket } from 'node:net';
import { assert } from '../../shared/assert.ts';
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { release } from '../../shared/release.ts';
import { ByteBudget, PayloadBuffers } from './byte-budget.ts';
import {
  decodeRequest,
  encodeOptionReply,
  encodeSimpleReply,
  encodeString,
  NBD_CMD,
  NBD_CMD_FLAG,
  NBD_EINVAL,
  NBD_EIO,
  NBD_ENOSPC,
  NBD_EOVERFLOW,
  NBD_EPERM,
  NBD_FLAG_FIXED_NEWSTYLE,
  NBD_FLAG_NO_ZEROES,
  NBD_IHAVEOPT,
  NBD_INFO,
  NBD_MAGIC,
  NBD_MAX_NAME_BYTES,
  NBD_MAX_OPTION_BYTES,
  NBD_MAX_PAYLOAD_BYTES,
  NBD_OPT,
  NBD_REP,
  NBD_TRANSMISSION,
  NbdError,
  type NbdExport,
  type NbdRequest,
  REQUEST_BYTES,
  SocketReader,
} from './nbd-protocol.ts';

const PREFERRED_BLOCK_BYTES = 65_536;
const MAX_OPTIONS = 64;

export interface Chosen {
  readonly name: string;
  readonly disk: NbdExport;
}

/**
 * The server side of the fixed newstyle handshake. Options are limited in size. A malformed one ends the connection.
 * Returns the selected export. Undefined when the client left, aborted or broke the protocol: close the connection.
 */
async function negotiate(
  socket: Socket,
  reader: SocketReader,
  exports: ReadonlyMap<string, NbdExport>,
): Promise<Chosen | undefined> {
  const greeting = Buffer.allocUnsafe(18);
  greeting.writeBigUInt64BE(NBD_MAGIC, 0);
  greeting.writeBigUInt64BE(NBD_IHAVEOPT, 8);
  greeting.writeUInt16BE(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES, 16);
  socket.write(greeting);
  const flags = (await reader.read(4))?.readUInt32BE(0);
  if (flags === undefined || (flags & ~(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES)) !== 0)
    return undefined;
  for (let i = 0; i < MAX_OPTIONS; i++) {
    const head = await reader.read(16);
    if (!head || head.readBigUInt64BE(0) !== NBD_IHAVEOPT) return undefined;
    const option = head.readUInt32BE(8);
    const length = head.readUInt32BE(12);
    if (length > NBD_MAX_OPTION_BYTES) return undefined;
    const data = await reader.read(length);
    if (!data) return undefined;
    if (option === NBD_OPT.export_name) {
      return chooseByName(socket, exports, data, (flags & NBD_FLAG_NO_ZEROES) !== 0);
    }
    if (option === NBD_OPT.abort) {
      socket.write(encodeOptionReply(option, NBD_REP.ack));
      return undefined;
    }
    const chosen = answerOption(socket, exports, option, data);
    if (chosen) return chosen;
  }
  return undefined;
}

/** NBD_OPT_EXPORT_NAME has no reply for an unknown name: the connection is closed. */
function chooseByName(
  socket: Socket,
  exports: ReadonlyMap<string, NbdExport>,
  data: Buffer,
  no_zeroes: boolean,
): Chosen | undefined {
  const name = data.toString('utf8');
  const disk = exports.get(name);
  if (!disk) return undefined;
  const out = Buffer.alloc(no_zeroes ? 10 : 134);
  out.writeBigUInt64BE(BigInt(disk.size_bytes), 0);
  out.writeUInt16BE(transmissionFlags(disk), 8);
  socket.write(out);
  return { name, disk };
}

function answerOption(
  socket: Socket,
  exports: ReadonlyMap<string, NbdExport>,
  option: number,
  data: Buffer,
): Chosen | undefined {
  const reply = (type: number, body?: Buffer): boolean => socket.write(encodeOptionReply(option, type, body));
  if (option === NBD_OPT.list) {
    if (data.length > 0) {
      reply(NBD_REP.err_invalid);
      return undefined;
    }
    for (const name of exports.keys()) reply(NBD_REP.server, encodeString(name));
    reply(NBD_REP.ack);
    return undefined;
  }
  if (option !== NBD_OPT.info && option !== NBD_OPT.go) {
    reply(NBD_REP.err_unsup);
    return undefined;
  }
  const asked = decodeInfoRequest(data);
  if (!asked) {
    reply(NBD_REP.err_invalid);
    return undefined;
  }
  const disk = exports.get(asked.name);
  if (!disk) {
    reply(NBD_REP.err_unknown);
    return undefined;
  }
  if (option === NBD_OPT.go && disk.min_block_bytes > 512 && !asked.infos.includes(NBD_INFO.block_size)) {
    reply(NBD_REP.err_block_size_required);
    return undefined;
  }
  reply(NBD_REP.info, exportInfo(disk));
  reply(NBD_REP.info, blockSizeInfo(disk));
  reply(NBD_REP.ack);
  return option === NBD_OPT.go ? { name: asked.name, disk } : undefined;
}

function decodeInfoRequest(data: Buffer): { name: string; infos: number[] } | undefined {
  if (data.length < 6) return undefined;
  const name_bytes = data.readUInt32BE(0);
  if (name_bytes > NBD_MAX_NAME_BYTES || data.length < 6 + name_bytes) return undefined;
  const count = data.readUInt16BE(4 + name_bytes);
  if (data.length !== 6 + name_bytes + count * 2) return undefined;
  const infos = Array.from({ length: count }, (_, i) => data.readUInt16BE(6 + name_bytes + i * 2));
  return { name: data.toString('utf8', 4, 4 + name_bytes), infos };
}

function exportInfo(disk: NbdExport): Buffer {
  const out = Buffer.allocUnsafe(12);
  out.writeUInt16BE(NBD_INFO.export, 0);
  out.writeBigUInt64BE(BigInt(disk.size_bytes), 2);
  out.writeUInt16BE(transmissionFlags(disk), 10);
  return out;
}

function blockSizeInfo(disk: NbdExport): Buffer {
  const out = Buffer.allocUnsafe(14);
  out.writeUInt16BE(NBD_INFO.block_size, 0);
  out.writeUInt32BE(disk.min_block_bytes, 2);
  out.writeUInt32BE(Math.max(disk.min_block_bytes, PREFERRED_BLOCK_BYTES), 6);
  out.writeUInt32BE(NBD_MAX_PAYLOAD_BYTES, 10);
  return out;
}

function transmissionFlags(disk: NbdExport): number {
  const { has_flags, read_only, send_flush, send_fua, send_trim, send_write_zeroes, send_fast_zero } =
    NBD_TRANSMISSION;
  if (disk.read_only) return has_flags | read_only | NBD_TRANSMISSION.can_multi_conn;
  let flags: number = has_flags;
  if (disk.flush) flags |= send_flush | send_fua;
  if (disk.writeZeroes) flags |= send_trim | send_write_zeroes | send_fast_zero;
  return flags;
}

const CONNECTION_BYTES = 8 * 1024 * 1024;
/** The charge of a request without its payload. It limits their number to 4,096. */
const REQUEST_CHARGE_BYTES = 16 * 1024;
const HANDSHAKE_TIMEOUT_MS = 10_000;
const NOTHING = Buffer.alloc(0);

/**
 * One connection of the NBD server, from greeting to close.
 *
 * Invariants: requests run concurrently, and replies may be in any order. Payloads and replies take at most
 * {@link CONNECTION_BYTES}; beyond that, the socket is not read. A misbehaving peer ends only its own connection.
 */
class NbdConnection {
  /** Resolves when the connection is closed and no request is in flight. */
  readonly done: Promise<void>;
  #exportName: string | undefined;
  readonly #socket: Socket;
  readonly #reader: SocketReader;
  readonly #log: Log | undefined;
  readonly #budget = new ByteBudget(CONNECTION_BYTES);
  readonly #underWay = new Set<Promise<void>>();
  readonly #payloads = new PayloadBuffers(CONNECTION_BYTES);

  constructor(socket: Socket, exports: ReadonlyMap<string, NbdExport>, log: Log | undefined) {
    this.#socket = socket;
    this.#log = log;
    socket.on('error', (error) => log?.debug({ error: messageOf(error) }, 'nbd connection broke'));
    this.#reader = new SocketReader(socket);
    this.done = this.#run(exports);
  }

  /** The selected export, after the handshake. */
  get export_name(): string | undefined {
    return this.#exportName;
  }

  /** Accepts no more requests, finishes those in flight, then closes. */
  drain(): void {
    this.#reader.stop();
  }

  destroy(): void {
    this.#socket.destroy();
  }

  async #run(exports: ReadonlyMap<string, NbdExport>): Promise<void> {
    const slow = setTimeout(() => this.#socket.destroy(), HANDSHAKE_TIMEOUT_MS);
    try {
      const chosen = await negotiate(this.#socket, this.#reader, exports);
      clearTimeout(slow);
      if (chosen) {
        this.#exportName = chosen.name;
        await this.#serve(chosen.disk);
      }
    } catch (error) {
      this.#log?.warn({ error: messageOf(error) }, 'nbd connection failed');
    } finally {
      clearTimeout(slow);
      await Promise.allSettled(this.#underWay);
      this.#payloads.close();
      await endSocket(this.#socket);
    }
  }

  async #serve(disk: NbdExport): Promise<void> {
    for (;;) {
      const head = await this.#reader.read(REQUEST_BYTES);
      if (!head) return;
      const request = decodeRequest(head);
      if (!request || request.type === NBD_CMD.disconnect) return;
      const is_write = request.type === NBD_CMD.write;
      // The protocol lets the server disconnect instead of skipping such a payload.
      if (is_write && request.length > NBD_MAX_PAYLOAD_BYTES) return;
      const carries = is_write || (request.type === NBD_CMD.read && request.length <= NBD_MAX_PAYLOAD_BYTES);
      const charge_bytes = REQUEST_CHARGE_BYTES + (carries ? request.length : 0);
      await this.#budget.take(charge_bytes);
      const room = (is_write && disk.rooms?.take(request.length)) || undefined;
      const payload = room ?? this.#payloads.take(is_write ? request.length : 0);
      this.#payloads.keepWithin(this.#budget.used_bytes);
      const giveBack = () => (room ? disk.rooms?.give(room) : this.#payloads.give(payload));
      if (!(await this.#reader.fill(payload))) return giveBack();
      const work = this.#answer(disk, request, payload, giveBack).finally(() => {
        this.#budget.give(charge_bytes);
        this.#underWay.delete(work);
      });
      this.#underWay.add(work);
    }
  }

  /** Executes one request, returns its payload buffer and writes its reply. Never rejects. */
  async #answer(disk: NbdExport, request: NbdRequest, payload: Buffer, giveBack: () => void): Promise<void> {
    let errno = 0;
    let data: Buffer = NOTHING;
    try {
      errno = refusal(disk, request);
      if (errno === 0) data = await execute(disk, request, payload);
    } catch (error) {
      errno = error instanceof NbdError ? error.errno : NBD_EIO;
      data = NOTHING;
      this.#log?.warn({ error: messageOf(error), type: request.type, errno }, 'nbd request failed');
    }
    giveBack();
    const reply = encodeSimpleReply(request.cookie, errno);
    if (!this.#socket.writable) return;
    // The callback always comes, with an error if the socket is destroyed first.
    const error = await new Promise<unknown>((resolve) => {
      this.#socket.cork();
      this.#socket.write(reply);
      this.#socket.write(data, resolve);
      this.#socket.uncork();
    });
    // After an error the kernel may still read it.
    if (!error) release(data);
  }
}

/** The error number of a request that the export does not support or allow; 0: none. */
function refusal(disk: NbdExport, { type, flags, offset, length }: NbdRequest): number {
  const known = NBD_CMD_FLAG.fua | NBD_CMD_FLAG.no_hole | NBD_CMD_FLAG.fast_zero;
  if ((flags & ~known) !== 0) return NBD_EINVAL;
  if (type === NBD_CMD.flush) return disk.flush ? 0 : NBD_EINVAL;
  const changes = type === NBD_CMD.write || type === NBD_CMD.trim || type === NBD_CMD.write_zeroes;
  if (!changes && type !== NBD_CMD.read) return NBD_EINVAL;
  if (changes && disk.read_only) return NBD_EPERM;
  if (offset + BigInt(length) > BigInt(disk.size_bytes)) {
    return type === NBD_CMD.write || type === NBD_CMD.write_zeroes ? NBD_ENOSPC : NBD_EINVAL;
  }
  if (length === 0) return NBD_EINVAL;
  if (type === NBD_CMD.read && length > NBD_MAX_PAYLOAD_BYTES) return NBD_EOVERFLOW;
  const aligned = Number(offset % BigInt(disk.min_block_bytes)) === 0 && length % disk.min_block_bytes === 0;
  if (!aligned && type !== NBD_CMD.trim) return NBD_EINVAL;
  if (type === NBD_CMD.read) return disk.read ? 0 : NBD_EPERM;
  if (type === NBD_CMD.write) return disk.write ? 0 : NBD_EPERM;
  return disk.writeZeroes ? 0 : NBD_EINVAL;
}

async function execute(disk: NbdExport, request: NbdRequest, payload: Buffer): Promise<Buffer> {
  const offset = Number(request.offset);
  const { length } = request;
  switch (request.type) {
    case NBD_CMD.read: {
      const data = await disk.read?.(offset, length);
      if (data?.length !== length) throw new Error('an export returned a read with a wrong length');
      return data;
    }
    case NBD_CMD.write:
      await disk.write?.(offset, payload);
      break;
    case NBD_CMD.write_zeroes:
      await disk.writeZeroes?.(offset, length);
      break;
    case NBD_CMD.trim: {
      // Trim whole blocks only, because the content of a trimmed range is undefined.
      const block = disk.min_block_bytes;
      const start = Math.ceil(offset / block) * block;
      const end = Math.floor((offset + length) / block) * block;
      if (end > start) await disk.writeZeroes?.(start, end - start);
      break;
    }
    default:
      await disk.flush?.();
      return NOTHING;
  }
  if ((request.flags & NBD_CMD_FLAG.fua) !== 0) await disk.flush?.();
  return NOTHING;
}

/** Sends the written data, then closes, also when the peer does not read. */
function endSocket(socket: Socket): Promise<void> {
  if (socket.destroyed) return Promise.resolve();
  return new Promise((resolve) => {
    socket.once('close', () => resolve());
    socket.resume(); // to see the peer's end
    socket.end(() => socket.destroy());
  });
}

export interface NbdServerOptions {
  /** Path of the socket. A socket left by a dead process is replaced. */
  readonly path: string;
  /** Permissions of the socket file, 0o600 by default. Connecting needs the write bit. */
  readonly mode?: number;
  /** Owner of the socket file: both or none. */
  readonly uid?: number;
  readonly gid?: number;
  /** Maximum connections; further ones are closed at once. 64 by default. */
  readonly max_connections?: number;
  readonly log?: Log;
}

export class NbdServer {
  readonly path: string;
  readonly #server: Server;
  readonly #exports = new Map<string, NbdExport>();
  readonly #connections = new Set<NbdConnection>();
  readonly #maxConnections: number;
  readonly #log: Log | undefined;
  #closed: Promise<void> | undefined;

  private constructor({ path, max_connections = 64, log }: NbdServerOptions) {
    this.path = path;
    this.#maxConnections = max_connections;
    this.#log = log;
    this.#server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (socket) =>
      this.#accept(socket),
    );
  }

  /** Listens, without exports. Rejects with the system error. */
  static async listen(options: NbdServerOptions): Promise<NbdServer> {
    const { path, mode = 0o600, uid, gid } = options;
    const server = new NbdServer(options);
    await removeStaleSocket(path);
    await new Promise<void>((resolve, reject) => {
      server.#server.once('error', reject);
      server.#server.listen(path, () => {
        server.#server.off('error', reject);
        resolve();
      });
    });
    server.#server.on('error', (error) => options.log?.error({ error: error.message }, 'nbd server'));
    try {
      if (uid !== undefined && gid !== undefined) await chown(path, uid, gid);
      await chmod(path, mode);
    } catch (error) {
      await server.close();
      throw error;
    }
    return server;
  }

  addExport(name: string, disk: NbdExport): void {
    assert(!this.#exports.has(name), `export ${name} is not there yet`);
    assert(Buffer.byteLength(name) <= NBD_MAX_NAME_BYTES, 'an export name is at most 4,096 bytes');
    const { min_block_bytes: min, size_bytes } = disk;
    assert(
      min >= 1 && min <= 65_536 && (min & (min - 1)) === 0,
      'a block size is a power of two up to 64 KiB',
    );
    assert(size_bytes % min === 0, 'an export has whole blocks');
    this.#exports.set(name, disk);
  }

  /** Removes an export and drains its connections. Resolves when no request of it is in flight. */
  async removeExport(name: string): Promise<void> {
    this.#exports.delete(name);
    const concerned = [...this.#connections].filter((connection) => connection.export_name === name);
    for (const connection of concerned) connection.drain();
    await Promise.all(concerned.map((connection) => connection.done));
  }

  /**
   * Stops listening, finishes requests in flight, then closes. Cuts connections that are not done after `drain_ms`. A second
   * call waits for the same end.
   */
  close(drain_ms = 5_000): Promise<void> {
    this.#closed ??= this.#close(drain_ms);
    return this.#closed;
  }

  /**
   * Stops listening and breaks all connections without replies: clients reconnect and repeat their requests. The exports'
   * owner must end their pending work.
   */
  cut(): Promise<void> {
    for (const connection of this.#connections) connection.destroy();
    return this.close(0);
  }

  async #close(drain_ms: number): Promise<void> {
    const stopped = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    for (const connection of this.#connections) connection.drain();
    const cut = setTimeout(() => {
      for (const connection of this.#connections) connection.destroy();
    }, drain_ms);
    await Promise.all([...this.#connections].map((connection) => connection.done));
    clearTimeout(cut);
    await stopped;
  }

  #accept(socket: Socket): void {
    if (this.#closed || this.#connections.size >= this.#maxConnections) {
      socket.destroy();
      return;
    }
    const connection = new NbdConnection(socket, this.#exports, this.#log);
    this.#connections.add(connection);
    void connection.done.finally(() => this.#connections.delete(connection));
  }
}

async function removeStaleSocket(path: string): Promise<void> {
  const found = await lstat(path).catch(() => undefined);
  if (found?.isSocket()) await unlink(path);
}
