/**
 * The server side of the fixed newstyle handshake. Options are limited in size. A malformed one ends the connection.
 */
import type { Socket } from 'node:net';
import type { NbdExport } from './nbd-export.ts';
import {
  encodeOptionReply,
  encodeString,
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
} from './nbd-protocol.ts';
import type { SocketReader } from './socket-reader.ts';

const PREFERRED_BLOCK_BYTES = 65_536;
const MAX_OPTIONS = 64;

export interface Chosen {
  readonly name: string;
  readonly disk: NbdExport;
}

/** Returns the selected export. Undefined when the client left, aborted or broke the protocol: close the connection. */
export async function negotiate(
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
