/**
 * The two DNS messages that the guests' resolver needs (RFC 1035): a query with one question, and its answer with addresses. Pure.
 * The look-ups themselves are done by Node's resolver, which reads the messages of other servers.
 */
import { isIP } from 'node:net';
import ipaddr from 'ipaddr.js';
import { sentName } from '../../shared/egress-policy.ts';

export const TYPE_A = 1;
export const TYPE_AAAA = 28;
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

/** null: no answer. A rcode: the message is a query that is answered with it alone. */
export function readQuery(message: Buffer): Query | { readonly id: number; readonly rcode: Rcode } | null {
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

export interface Answer {
  readonly rcode: Rcode;
  /** Of the question's family. */
  readonly addresses?: readonly string[];
  readonly ttl_seconds?: number;
  /** The policy is the reason (RFC 8914). */
  readonly prohibited?: string;
}

/** `over_udp`: an answer that is too long is cut off, and the client asks again by TCP. */
export function writeAnswer(query: Query, answer: Answer, over_udp: boolean): Buffer {
  const records = (answer.addresses ?? []).map((address) => addressRecord(address, answer.ttl_seconds ?? 0));
  const extra = query.edns ? [optRecord(answer.prohibited)] : [];
  const whole = message(query, answer.rcode, records, extra, false);
  const limit = query.edns ? EDNS_BYTES : UDP_BYTES;
  return over_udp && whole.length > limit ? message(query, answer.rcode, [], extra, true) : whole;
}

/** For a query that has no readable question. */
export function writeRefusal({ id, rcode }: { readonly id: number; readonly rcode: Rcode }): Buffer {
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
