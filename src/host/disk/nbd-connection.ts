/**
 * One connection of the NBD server, from greeting to close.
 *
 * Invariants: requests run concurrently, and replies may be in any order. Payloads and replies take at most
 * {@link CONNECTION_BYTES}; beyond that, the socket is not read. A misbehaving peer ends only its own connection.
 */
import type { Socket } from 'node:net';
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { release } from '../../shared/release.ts';
import { ByteBudget, PayloadBuffers } from './byte-budget.ts';
import { NbdError, type NbdExport } from './nbd-export.ts';
import { negotiate } from './nbd-handshake.ts';
import {
  decodeRequest,
  encodeSimpleReply,
  NBD_CMD,
  NBD_CMD_FLAG,
  NBD_EINVAL,
  NBD_EIO,
  NBD_ENOSPC,
  NBD_EOVERFLOW,
  NBD_EPERM,
  NBD_MAX_PAYLOAD_BYTES,
  type NbdRequest,
  REQUEST_BYTES,
} from './nbd-protocol.ts';
import { SocketReader } from './socket-reader.ts';

const CONNECTION_BYTES = 8 * 1024 * 1024;
/** The charge of a request without its payload. It limits their number to 4,096. */
const REQUEST_CHARGE_BYTES = 16 * 1024;
const HANDSHAKE_TIMEOUT_MS = 10_000;
const NOTHING = Buffer.alloc(0);

export class NbdConnection {
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
