/**
 * Lists attempts to bypass an egress policy with packets that a guest's kernel would not send: fragments, other
 * senders, other protocols, segments without a connection. egress-attempts.ts includes them.
 */
import { GATEWAY, GUEST, guestAddress, HOST_END } from '../../src/host/network/addresses.ts';
import { type Attempt, EVIL, GOOD } from './egress-attempt.ts';
import { ipv4, PROTOCOL, ping, syn, tcp, udp } from './frames.ts';

const LITERAL = '203.0.113.20';
const UDP_PORT = 5_000;
/** `raw` with this protocol sends packets with their header (raw(7)). */
const IPPROTO_RAW = 255;

type Packet = Parameters<typeof ipv4>[0];

function packets(name: string, ...sent: readonly (Omit<Packet, 'from'> & { from?: string })[]): Attempt {
  const send = sent.map((each, id) => {
    const packet = ipv4({ from: GUEST, ...each });
    // Fragments of one packet have one id.
    packet.writeUInt16BE(0x6500 + (each.fragment === undefined ? id : 0), 4);
    return packet;
  });
  const address = sent[0]?.to ?? EVIL;
  return { name, kind: 'raw', address, port: IPPROTO_RAW, send, reaches_in_open: false };
}

const datagram = udp(GUEST, EVIL, [41_000, UDP_PORT], Buffer.from('evil in fragments'));
const segment = syn(GUEST, EVIL, [41_001, 443]);
const inner = ipv4({
  ...{ from: LITERAL, to: GUEST, protocol: PROTOCOL.tcp },
  payload: syn(LITERAL, GUEST, [8_080, 41_002]).subarray(0, 8),
});
const unreachable = Buffer.concat([Buffer.from([3, 3, 0xfc, 0xfc, 0, 0, 0, 0]), inner]);
const MORE = 0x2000;

const FRAGMENTS: readonly Attempt[] = [
  packets(
    'a datagram in two fragments',
    { to: EVIL, protocol: PROTOCOL.udp, payload: datagram.subarray(0, 16), fragment: MORE },
    { to: EVIL, protocol: PROTOCOL.udp, payload: datagram.subarray(16), fragment: 2 },
  ),
  packets(
    'a datagram in fragments, the last first',
    { to: EVIL, protocol: PROTOCOL.udp, payload: datagram.subarray(8), fragment: 1 },
    { to: EVIL, protocol: PROTOCOL.udp, payload: datagram.subarray(0, 8), fragment: MORE },
  ),
  packets(
    'a SYN with its flags in a second fragment',
    { to: EVIL, protocol: PROTOCOL.tcp, payload: segment.subarray(0, 8), fragment: MORE },
    { to: EVIL, protocol: PROTOCOL.tcp, payload: segment.subarray(8), fragment: 1 },
  ),
  packets(
    'fragments that overlap, with another port in the second',
    { to: LITERAL, protocol: PROTOCOL.udp, payload: udpTo(8_080, 16), fragment: MORE },
    { to: LITERAL, protocol: PROTOCOL.udp, payload: udpTo(UDP_PORT, 16), fragment: MORE },
    { to: LITERAL, protocol: PROTOCOL.udp, payload: Buffer.from('evil'), fragment: 2 },
  ),
  packets('a fragment without a first', {
    ...{ to: EVIL, protocol: PROTOCOL.udp, payload: datagram, fragment: 3 },
  }),
];

function udpTo(port: number, length: number): Buffer {
  return udp(GUEST, LITERAL, [41_003, port], Buffer.alloc(64, 'e')).subarray(0, length);
}

const SENDERS = {
  'its gateway': GATEWAY,
  'another guest': guestAddress(1_795),
  'the host': HOST_END,
  'its own outer address': guestAddress(1_794),
  'an address on the internet': '192.0.2.7',
  'the allowed address': LITERAL,
  loopback: '127.0.0.1',
} as const;

const FORGED: readonly Attempt[] = Object.entries(SENDERS).flatMap(([who, from]) => [
  packets(`a datagram in the name of ${who}`, {
    ...{ to: EVIL, from, protocol: PROTOCOL.udp },
    payload: udp(from, EVIL, [41_004, UDP_PORT], Buffer.from('evil')),
  }),
  packets(`a look-up in the name of ${who}`, {
    ...{ to: '203.0.113.53', from, protocol: PROTOCOL.udp },
    payload: udp(from, '203.0.113.53', [41_005, 53], Buffer.from('evil')),
  }),
]);

const FLAGS = {
  'an ACK': 0x10,
  'a FIN': 0x11,
  'a RST': 0x04,
  'a SYN-ACK': 0x12,
  'no flags': 0,
  'all flags': 0x3f,
};

const SEGMENTS: readonly Attempt[] = [
  ...Object.entries(FLAGS).map(([what, flags], at) =>
    packets(`a segment of no connection: ${what}`, {
      ...{ to: EVIL, protocol: PROTOCOL.tcp },
      payload: tcp(GUEST, EVIL, { ports: [42_000 + at, 443], sequence: 1, acknowledged: 1, flags }),
    }),
  ),
  packets('an ACK to another port of an allowed name', {
    ...{ to: GOOD, protocol: PROTOCOL.tcp },
    payload: tcp(GUEST, GOOD, { ports: [42_100, 22], sequence: 1, acknowledged: 1, flags: 0x10 }),
  }),
];

const ERRORS: readonly Attempt[] = [
  packets('an ICMP error about a connection that is allowed, to another address', {
    ...{ to: EVIL, protocol: PROTOCOL.icmp, payload: unreachable },
  }),
  packets('an ICMP error about no connection', {
    ...{ to: EVIL, protocol: PROTOCOL.icmp },
    payload: Buffer.from([11, 0, 0xf4, 0xff, 0, 0, 0, 0]),
  }),
  packets('a ping of an address that is allowed with a port', {
    ...{ to: LITERAL, protocol: PROTOCOL.icmp, payload: ping(66) },
  }),
];

const PROTOCOLS: readonly Attempt[] = Object.entries({
  IGMP: 2,
  DCCP: 33,
  'an authentication header': 51,
  OSPF: 89,
  'UDP-Lite': 136,
  'an unassigned protocol': 200,
}).map(([name, port]) => ({
  ...({ name, kind: 'raw', address: EVIL, port, reaches_in_open: false } as const),
  send: [Buffer.from('evil raw packet')],
}));

export const PACKET_ATTEMPTS: readonly Attempt[] = [
  ...FRAGMENTS,
  ...FORGED,
  ...SEGMENTS,
  ...ERRORS,
  ...PROTOCOLS,
];
