/** The client side of the fixed newstyle handshake: selects an export with NBD_OPT_GO. */
import type { Socket } from 'node:net';
import {
  encodeOption,
  encodeString,
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
} from './nbd-protocol.ts';
import type { SocketReader } from './socket-reader.ts';

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

/** @throws NbdProtocolError when the server refuses or breaks the protocol. */
export async function chooseExport(
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
