/**
 * Answers the DNS queries of guests, over UDP and TCP. A VM is identified by its source address; any other sender gets
 * no answer. A name that the VM's egress policy does not allow is answered as absent (NXDOMAIN), with the policy as the
 * reason.
 *
 * A guest that does not read its answers costs no memory. Over TCP, its next query waits until it has read the answer.
 * Over UDP, the answer is dropped if UDP_WAITING_BYTES already wait to be sent.
 */
import type { Socket as UdpSocket } from 'node:dgram';
import { once } from 'node:events';
import { isIP, type Server, type Socket } from 'node:net';
import ipaddr from 'ipaddr.js';
import { endAfterFault } from '../shared/contain.ts';
import { sentName } from '../shared/egress-policy.ts';
import type { ProxiedGuest } from './proxied-guest.ts';

const TYPE_A = 1;
const TYPE_AAAA = 28;
const RCODES = { ok: 0, malformed: 1, failed: 2, absent: 3, unsupported: 4 } as const;
export type Rcode = keyof typeof RCODES;

const HEADER_BYTES = 12;
const CLASS_IN = 1;
const TYPE_OPT = 41;
const UDP_BYTES = 512;
const EDNS_BYTES = 1_232;
const EDE_PROHIBITED = 18;

export interface Query {
  readonly id: number;
  /** The question as it was sent, for the answer. */
  readonly question: Buffer;
  /** In the form of sentName; null when it is no host name. */
  readonly name: string | null;
  readonly type: number;
  readonly recursion_desired: boolean;
  /** The client understands EDNS. */
  readonly edns: boolean;
}

/**
 * Reads a DNS query with one question (RFC 1035). Pure. null: the message gets no answer. A rcode: the message is a query that is
 * answered with it alone.
 */
function readQuery(message: Buffer): Query | { readonly id: number; readonly rcode: Rcode } | null {
  if (message.length < HEADER_BYTES || ((message[2] ?? 0) & 0x80) !== 0) return null;
  const id = message.readUInt16BE(0);
  if (((message[2] ?? 0) & 0x78) !== 0) return { id, rcode: 'unsupported' };
  if (message.readUInt16BE(4) !== 1) return { id, rcode: 'malformed' };
  const labels: string[] = [];
  let at = HEADER_BYTES;
  for (;;) {
    const length = message[at];
    // No pointers: nothing comes before the first question.
    if (length === undefined || length > 63 || at - HEADER_BYTES > 254) return { id, rcode: 'malformed' };
    at += 1;
    if (length === 0) break;
    labels.push(message.toString('latin1', at, at + length));
    at += length;
  }
  if (message.length < at + 4) return { id, rcode: 'malformed' };
  const is_internet = message.readUInt16BE(at + 2) === CLASS_IN;
  const clean = labels.every((label) => !label.includes('.'));
  return {
    id,
    question: Buffer.from(message.subarray(HEADER_BYTES, at + 4)),
    name: is_internet && clean ? sentName(labels.join('.')) : null,
    type: message.readUInt16BE(at),
    recursion_desired: ((message[2] ?? 0) & 1) === 1,
    edns: message.readUInt16BE(10) > 0,
  };
}

export interface DnsAnswer {
  readonly rcode: Rcode;
  /** Of the question's family. */
  readonly addresses?: readonly string[];
  readonly ttl_seconds?: number;
  /** The policy is the reason (RFC 8914). */
  readonly prohibited?: string;
}

/** `over_udp`: an answer that is too long is cut off, and the client asks again by TCP. */
function writeAnswer(query: Query, answer: DnsAnswer, over_udp: boolean): Buffer {
  const records = (answer.addresses ?? []).map((address) => addressRecord(address, answer.ttl_seconds ?? 0));
  const extra = query.edns ? [optRecord(answer.prohibited)] : [];
  const whole = message(query, answer.rcode, records, extra, false);
  const limit = query.edns ? EDNS_BYTES : UDP_BYTES;
  return over_udp && whole.length > limit ? message(query, answer.rcode, [], extra, true) : whole;
}

/** For a query that has no readable question. */
function writeRefusal({ id, rcode }: { readonly id: number; readonly rcode: Rcode }): Buffer {
  const header = Buffer.alloc(HEADER_BYTES);
  header.writeUInt16BE(id, 0);
  header.writeUInt16BE(0x8080 | RCODES[rcode], 2);
  return header;
}

function message(
  query: Query,
  rcode: Rcode,
  records: readonly Buffer[],
  extra: readonly Buffer[],
  cut_off: boolean,
): Buffer {
  const header = Buffer.alloc(HEADER_BYTES);
  header.writeUInt16BE(query.id, 0);
  // Response, recursion available.
  header.writeUInt16BE(
    0x8080 | (query.recursion_desired ? 0x0100 : 0) | (cut_off ? 0x0200 : 0) | RCODES[rcode],
    2,
  );
  header.writeUInt16BE(1, 4);
  header.writeUInt16BE(records.length, 6);
  header.writeUInt16BE(extra.length, 10);
  return Buffer.concat([header, query.question, ...records, ...extra]);
}

function addressRecord(address: string, ttl_seconds: number): Buffer {
  const data = Buffer.from(ipaddr.parse(address).toByteArray());
  const head = Buffer.alloc(12);
  // The name is the question's.
  head.writeUInt16BE(0xc000 | HEADER_BYTES, 0);
  head.writeUInt16BE(isIP(address) === 4 ? TYPE_A : TYPE_AAAA, 2);
  head.writeUInt16BE(CLASS_IN, 4);
  head.writeUInt32BE(ttl_seconds, 6);
  head.writeUInt16BE(data.length, 10);
  return Buffer.concat([head, data]);
}

function optRecord(prohibited: string | undefined): Buffer {
  const text = Buffer.from(prohibited ?? '', 'utf8');
  const option = Buffer.alloc(prohibited === undefined ? 0 : 6);
  if (prohibited !== undefined) {
    option.writeUInt16BE(15, 0);
    option.writeUInt16BE(2 + text.length, 2);
    option.writeUInt16BE(EDE_PROHIBITED, 4);
  }
  const head = Buffer.alloc(11);
  head.writeUInt16BE(TYPE_OPT, 1);
  head.writeUInt16BE(EDNS_BYTES, 3);
  head.writeUInt16BE(option.length + text.length, 9);
  return Buffer.concat([head, option, text]);
}

const PROHIBITED = "not allowed by the instance's egress policy";

/** Answers a guest's message. null: no answer. */
async function answerQuery(guest: ProxiedGuest, message: Buffer, over_udp: boolean): Promise<Buffer | null> {
  const query = readQuery(message);
  if (query === null) return null;
  if (!('question' in query)) return writeRefusal(query);
  const { name, type } = query;
  if (name === null) return writeAnswer(query, { rcode: 'absent', prohibited: PROHIBITED }, over_udp);
  if (!guest.permitsName(name, null)) {
    // apt asks for `_http._tcp.NAME` beside NAME; that is no attempt of its own.
    const plain = name.replace(/^(_[a-z0-9-]+\.)+/, '');
    if (plain === name || !guest.permitsName(plain, null)) guest.deny({ name, address: null, port: null });
    return writeAnswer(query, { rcode: 'absent', prohibited: PROHIBITED }, over_udp);
  }
  // Other records are not needed to connect. HTTPS records would bring ECH, whose inner name nobody can check.
  if (type !== TYPE_A && type !== TYPE_AAAA) return writeAnswer(query, { rcode: 'ok' }, over_udp);
  const found = await guest.lookUp(name, type === TYPE_A ? 4 : 6);
  if (found.outcome !== 'found') return writeAnswer(query, { rcode: found.outcome }, over_udp);
  // The policy may have changed meanwhile.
  const addresses = guest.permitsName(name, null) ? found.addresses : [];
  return writeAnswer(query, { rcode: 'ok', addresses, ttl_seconds: found.ttl_seconds }, over_udp);
}

const MESSAGE_MAX_BYTES = 4_096;
const TCP_IDLE_MS = 10_000;
/** Answers over UDP that the kernel has not taken yet, of all guests. */
const UDP_WAITING_BYTES = 1024 * 1024;

export type FindGuest = (address: string | undefined) => ProxiedGuest | undefined;

export function serveUdp(socket: UdpSocket, findGuest: FindGuest): void {
  socket.on('message', (message, { address, port }) => {
    const guest = findGuest(address);
    // A packet may come from port 0, to which none can be sent.
    if (!guest || message.length > MESSAGE_MAX_BYTES || port === 0) return;
    answerQuery(guest, message, true)
      .then((answer) => {
        if (answer && socket.getSendQueueSize() < UDP_WAITING_BYTES)
          socket.send(answer, port, address, () => undefined);
      })
      .catch(endAfterFault());
  });
}

export function serveTcp(server: Server, findGuest: FindGuest, idle_ms = TCP_IDLE_MS): void {
  server.on('connection', (socket) => {
    socket.on('error', () => socket.destroy());
    const guest = findGuest(socket.remoteAddress);
    if (guest) void answerStream(socket, guest, idle_ms).catch(() => socket.destroy());
    else socket.destroy();
  });
}

/** One query after the other; each has its length in front (RFC 7766). */
async function answerStream(socket: Socket, guest: ProxiedGuest, idle_ms: number): Promise<void> {
  const release = guest.hold({ isPermitted: () => true, cut: () => socket.destroy() });
  if (!release) return void socket.destroy();
  const ended = new AbortController();
  socket.once('close', () => {
    release();
    ended.abort();
  });
  socket.setTimeout(idle_ms, () => socket.destroy());
  let waiting = Buffer.alloc(0);
  for await (const chunk of socket) {
    waiting = Buffer.concat([waiting, chunk as Buffer]);
    while (waiting.length >= 2) {
      const length = waiting.readUInt16BE(0);
      if (length > MESSAGE_MAX_BYTES) return void socket.destroy();
      if (waiting.length < 2 + length) break;
      const answer = await answerQuery(guest, waiting.subarray(2, 2 + length), false);
      waiting = waiting.subarray(2 + length);
      if (answer) {
        const size = Buffer.alloc(2);
        size.writeUInt16BE(answer.length, 0);
        if (!socket.write(Buffer.concat([size, answer])))
          await once(socket, 'drain', { signal: ended.signal });
      }
    }
  }
  socket.end();
}
