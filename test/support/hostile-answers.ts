/**
 * Makes answers that no server should give, for tests of the relays in ingress, egress proxy and E2B adapter: a table
 * of known ones, and random ones by a seed. One description becomes bytes of HTTP/1.1 or frames of HTTP/2.
 */
import { constants } from 'node:http2';

export const KINDS = ['answer', 'upgrade', 'interim', 'trailers', 'cut'] as const;
export type Kind = (typeof KINDS)[number];
type Fields = readonly (readonly [string, string])[];

interface Head {
  readonly status: string;
  readonly reason: string;
  readonly fields: Fields;
}

export interface HostileAnswer {
  readonly kind: Kind;
  /** Before the final head. */
  readonly interim: readonly Head[];
  readonly final: Head;
  readonly body: string;
  readonly framing: 'length' | 'chunks' | 'both' | 'close' | 'wrong length';
  readonly trailers: Fields;
  /** The part of it that is sent. */
  readonly sent: number;
  readonly ends: 'end' | 'reset';
  /** The client does not wait for its end: so many ms after its request, or as soon as the head is there. */
  readonly client_leaves: number | 'at head' | null;
}

const PLAIN_NAMES: readonly string[] = [
  ...[
    'etag',
    'content-type',
    'set-cookie',
    'alt-svc',
    'expect',
    'link',
    'clear-site-data',
    'x-a',
    'x-b',
    'http2-settings',
  ],
  ...[
    '__proto__',
    'constructor',
    'prototype',
    'hasownproperty',
    'tostring',
    'then',
    'x_forwarded_for',
    'location',
  ],
  ...[
    'sec-websocket-accept',
    'sec-websocket-protocol',
    'sec-websocket-extensions',
    'proxy-authenticate',
    'trailer',
  ],
  ...Object.entries(constants)
    .flatMap(([key, value]) => (key.startsWith('HTTP2_HEADER_') ? [String(value)] : []))
    .filter(
      (name) =>
        !/^:|^(connection|keep-alive|proxy-connection|transfer-encoding|upgrade|te|content-length)$/.test(
          name,
        ),
    ),
];
/** A parser may refuse the whole answer for one of these. */
const ODD_NAMES: readonly string[] = [
  ...['connection', 'keep-alive', 'proxy-connection', 'transfer-encoding', 'upgrade', 'te', 'content-length'],
  ...['x-é', ':status', ':path', 'x y', '', 'x\x01'],
];
const PLAIN_VALUES: readonly string[] = [
  ...[
    '',
    'a',
    ' a ',
    '\ta',
    '\x80\xff',
    'Ä',
    'a, b',
    '"a"',
    '0',
    '5',
    'close',
    'websocket',
    'trailers',
    'chunked',
  ],
  ...['</a.css>; rel=preload', 'a=1; Domain=localhost; Path=/', 'berth-port=1', 'x'.repeat(3_000)],
];
const ODD_VALUES: readonly string[] = [
  ...[
    'a\x01b',
    'a\x7f',
    '\u0100',
    '-1',
    '99999999999999999999',
    'keep-alive',
    'upgrade',
    'h2c',
    'gzip, chunked',
  ],
  ...['identity', 'etag', 'content-length, x-a'],
];
const STATUSES: readonly string[] = [
  ...[
    '200',
    '200',
    '200',
    '204',
    '205',
    '206',
    '226',
    '299',
    '301',
    '304',
    '401',
    '404',
    '421',
    '426',
    '500',
    '599',
  ],
  ...[
    '600',
    '700',
    '999',
    '099',
    '001',
    '000',
    '100',
    '101',
    '102',
    '103',
    '150',
    '199',
    '1000',
    '20',
    '2x0',
    '-20',
    '',
  ],
];
const REASONS: readonly string[] = ['OK', '', 'O\x01K', 'Ä€', '\xc4\x80', 'x'.repeat(300), 'a:b', '\t'];
const BODIES: readonly string[] = ['', 'x', 'hello', 'x'.repeat(20_000), 'HTTP/1.1 200 OK\r\n\r\n'];
const FRAMINGS = ['length', 'length', 'chunks', 'chunks', 'close', 'both', 'wrong length'] as const;
const UPGRADE: Fields = [
  ['Connection', 'Upgrade'],
  ['Upgrade', 'websocket'],
  ['Sec-WebSocket-Accept', 'x'],
];

export function randomAnswer(kind: Kind, random: () => number): HostileAnswer {
  const one = <T>(of: readonly T[]): T => of[Math.floor(random() * of.length)] as T;
  const chance = (of_one: number) => random() < of_one;
  const fields = (most: number): [string, string][] => {
    const some = Array.from({ length: Math.floor(random() * (most + 1)) }, (): [string, string] => [
      one(chance(0.06) ? ODD_NAMES : chance(0.3) ? PLAIN_NAMES.slice(0, 10) : PLAIN_NAMES),
      one(chance(0.06) ? ODD_VALUES : PLAIN_VALUES),
    ]);
    const [again] = some;
    return again && chance(0.4) ? [...some, [again[0], one(PLAIN_VALUES)]] : some;
  };
  const fine = { status: '200', reason: 'OK' };
  const head = (odd: number): Head => ({
    ...(chance(odd) ? { status: one(STATUSES), reason: one(REASONS) } : fine),
    fields: fields(4),
  });
  const upgrade: Head = {
    ...(chance(0.2)
      ? { status: one(STATUSES), reason: one(REASONS) }
      : { status: '101', reason: one(REASONS) }),
    fields: [...(chance(0.9) ? UPGRADE : UPGRADE.slice(0, 2).reverse()), ...fields(4)],
  };
  const before = (): Head => ({
    status: chance(0.9)
      ? `1${Math.floor(random() * 100)
          .toString()
          .padStart(2, '0')}`
      : one(STATUSES),
    reason: one(REASONS),
    fields: fields(3),
  });
  const has_interim = kind === 'interim' || (kind === 'cut' && chance(0.3));
  const has_trailers = kind === 'trailers' || (kind === 'cut' && chance(0.3));
  return {
    kind,
    interim: has_interim
      ? Array.from({ length: 1 + Math.floor(random() * (chance(0.05) ? 40 : 3)) }, before)
      : [],
    final:
      kind === 'upgrade' || (kind === 'cut' && chance(0.2)) ? upgrade : head(kind === 'answer' ? 0.5 : 0.1),
    body: one(BODIES),
    framing: has_trailers ? 'chunks' : one(FRAMINGS),
    trailers: has_trailers ? fields(5) : [],
    sent: kind === 'cut' ? random() : 1,
    ends: chance(0.2) ? 'reset' : 'end',
    client_leaves: chance(0.9) ? null : chance(0.5) ? 'at head' : Math.floor(random() * 6),
  };
}

const WHOLE = {
  interim: [],
  body: '',
  framing: 'length',
  trailers: [],
  sent: 1,
  ends: 'end',
  client_leaves: null,
} as const;
const OK: Head = { status: '200', reason: 'OK', fields: [] };
const status = (code: string, fields: Fields = []): Head => ({ status: code, reason: 'X', fields });
const accepting = (...more: Fields): Head => ({ status: '101', reason: 'S', fields: [...UPGRADE, ...more] });

/** What ended an ingress, a proxy or an adapter once, and what is close to it. */
export const KNOWN_ANSWERS: Readonly<Record<string, HostileAnswer>> = {
  'a final status of 600': { ...WHOLE, kind: 'answer', final: status('600') },
  'a final status of 099': { ...WHOLE, kind: 'answer', final: status('099') },
  'a final status of 101 that nobody asked for': { ...WHOLE, kind: 'answer', final: status('101', UPGRADE) },
  'a final status of 101 without an upgrade': { ...WHOLE, kind: 'answer', final: status('101') },
  'status 600 to a handshake': { ...WHOLE, kind: 'upgrade', final: status('600') },
  'status 099 to a handshake': { ...WHOLE, kind: 'upgrade', final: status('099') },
  'a handshake with a field twice': {
    ...{ ...WHOLE, kind: 'upgrade' },
    final: accepting(['ETag', '"1"'], ['ETag', '"2"']),
  },
  'a handshake for another protocol': {
    ...WHOLE,
    kind: 'upgrade',
    final: status('101', [
      ['Connection', 'Upgrade'],
      ['Upgrade', 'h2c'],
    ]),
  },
  'trailers that name ETag twice': {
    ...{ ...WHOLE, kind: 'trailers', final: OK, body: 'x', framing: 'chunks' },
    trailers: [
      ['ETag', '"1"'],
      ['ETag', '"2"'],
    ],
  },
  'an answer that names ETag twice': {
    ...{ ...WHOLE, kind: 'answer' },
    final: status('200', [
      ['ETag', '"1"'],
      ['ETag', '"2"'],
    ]),
  },
  'trailers with fields of a connection': {
    ...{ ...WHOLE, kind: 'trailers', final: OK, body: 'x', framing: 'chunks' },
    trailers: [
      ['HTTP2-Settings', 'AAMAAABk'],
      ['Connection', 'close'],
      ['__proto__', 'a'],
    ],
  },
  'an interim 103 with http2-settings': {
    ...{ ...WHOLE, kind: 'interim', final: OK },
    interim: [
      status('103', [
        ['http2-settings', 'AAMAAABk'],
        ['link', '</a>; rel=preload'],
      ]),
    ],
  },
  'an interim 103 with connection': {
    ...{ ...WHOLE, kind: 'interim', final: OK },
    interim: [
      status('103', [
        ['connection', 'close'],
        ['etag', '1'],
        ['etag', '2'],
      ]),
    ],
  },
  'a field named __proto__': {
    ...{ ...WHOLE, kind: 'answer' },
    final: status('200', [
      ['__proto__', 'a'],
      ['__proto__', 'b'],
      ['constructor', 'c'],
    ]),
  },
  'a trailer that was announced beside a length': {
    ...{ ...WHOLE, kind: 'answer', body: 'x' },
    final: status('200', [['Trailer', 'X']]),
  },
  'a body with status 205': { ...WHOLE, kind: 'answer', final: status('205'), body: 'hello' },
  'a body that is shorter than its length': {
    ...WHOLE,
    kind: 'cut',
    final: OK,
    body: 'hello',
    framing: 'wrong length',
  },
};

/** Latin 1, as in the wire. */
const bytes = (text: string) => Buffer.from(text, 'latin1');
const line = ([name, value]: readonly [string, string]) => `${name}: ${value}\r\n`;

/** Whether a client that sees the final head must see a cut behind it. */
export function isCutInBody({ kind, interim, final, framing, sent }: HostileAnswer): boolean {
  return (
    kind === 'cut' &&
    sent < 1 &&
    interim.every(({ status: each }) => /^1(?!01)\d\d$/.test(each)) &&
    !['101', '204', '205', '304'].includes(final.status) &&
    (framing === 'length' || framing === 'chunks')
  );
}

export function asHttp1({ interim, final, body, framing, trailers, sent }: HostileAnswer): Buffer {
  const head = ({ status, reason, fields }: Head, more: Fields = []) =>
    `HTTP/1.1 ${status} ${reason}\r\n${[...fields, ...more].map(line).join('')}\r\n`;
  const length = ['Content-Length', String(body.length + (framing === 'wrong length' ? 7 : 0))] as const;
  const chunked = ['Transfer-Encoding', 'chunked'] as const;
  const by: Record<HostileAnswer['framing'], Fields> = {
    ...{ length: [length], 'wrong length': [length], chunks: [chunked], both: [length, chunked], close: [] },
  };
  const in_chunks = framing === 'chunks' || framing === 'both';
  const chunks = `${body === '' ? '' : `${body.length.toString(16)}\r\n${body}\r\n`}0\r\n${trailers.map(line).join('')}\r\n`;
  const is_upgrade = final.status === '101';
  const whole = bytes(
    interim.map((each) => head(each)).join('') +
      head(final, is_upgrade ? [] : by[framing]) +
      (in_chunks && !is_upgrade ? chunks : body),
  );
  return whole.subarray(0, Math.floor(whole.length * sent));
}

const [DATA, HEADERS, RST_STREAM] = [0, 1, 3];
const [END_STREAM, END_HEADERS] = [0x1, 0x4];

export function http2Frame(type: number, flags: number, stream: number, payload: Buffer): Buffer {
  const head = Buffer.alloc(9);
  head.writeUIntBE(payload.length, 0, 3);
  head[3] = type;
  head[4] = flags;
  head.writeUInt32BE(stream, 5);
  return Buffer.concat([head, payload]);
}

/** A literal field that no table keeps (RFC 7541, 6.2.2): client libraries refuse to send most of these. */
export function literalField(name: string, value: string): Buffer {
  return Buffer.concat([Buffer.from([0]), literalText(name), literalText(value)]);
}

function literalText(text: string): Buffer {
  const raw = bytes(text);
  if (raw.length < 127) return Buffer.concat([Buffer.from([raw.length]), raw]);
  const length = [127];
  let rest = raw.length - 127;
  for (; rest >= 128; rest >>= 7) length.push(0x80 | (rest & 0x7f));
  return Buffer.concat([Buffer.from([...length, rest]), raw]);
}

export function asHttp2(
  { interim, final, body, framing, trailers, sent, ends }: HostileAnswer,
  stream: number,
): Buffer {
  const block = (fields: Fields) =>
    Buffer.concat(fields.map(([name, value]) => literalField(name.toLowerCase(), value))).subarray(0, 16_000);
  const head = ({ status, fields }: Head, flags: number, more: Fields = []) =>
    http2Frame(HEADERS, END_HEADERS | flags, stream, block([[':status', status], ...fields, ...more]));
  const length = ['content-length', String(body.length + (framing === 'wrong length' ? 7 : 0))] as const;
  const has_trailers = trailers.length > 0;
  const whole = Buffer.concat([
    ...interim.map((each) => head(each, 0)),
    head(final, 0, framing === 'close' || framing === 'chunks' ? [] : [length]),
    http2Frame(DATA, has_trailers ? 0 : END_STREAM, stream, bytes(body.slice(0, 16_000))),
    ...(has_trailers ? [http2Frame(HEADERS, END_HEADERS | END_STREAM, stream, block(trailers))] : []),
  ]);
  const cut = Buffer.from(whole.subarray(0, Math.floor(whole.length * sent)));
  if (sent === 1 && ends === 'reset')
    return Buffer.concat([cut, http2Frame(RST_STREAM, 0, stream, Buffer.from([0, 0, 0, 2]))]);
  return cut;
}
