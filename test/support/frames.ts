/** Makes and reads Ethernet frames, also such as only a hostile guest would send. */
export const BROADCAST = 'ff:ff:ff:ff:ff:ff';
export const ETHERTYPE = { ipv4: 0x0800, arp: 0x0806, vlan: 0x8100, ipv6: 0x86dd, pppoe: 0x8863 } as const;
export const PROTOCOL = { icmp: 1, ipip: 4, tcp: 6, udp: 17, ipv6: 41, gre: 47 } as const;

export function mac(address: string): Buffer {
  return Buffer.from(address.replaceAll(':', ''), 'hex');
}

export function ip(address: string): Buffer {
  return Buffer.from(address.split('.').map(Number));
}

/** RFC 1071. */
function checksum(bytes: Buffer): number {
  let sum = 0;
  for (let at = 0; at < bytes.length; at += 2) sum += ((bytes[at] ?? 0) << 8) + (bytes[at + 1] ?? 0);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16);
  return ~sum & 0xffff;
}

export function checksumIsRight(bytes: Buffer): boolean {
  return checksum(bytes) === 0;
}

export interface Ends {
  readonly from_mac: string;
  readonly to_mac: string;
}

export function ethernet({ from_mac, to_mac }: Ends, type: number, payload: Buffer): Buffer {
  const head = Buffer.alloc(2);
  head.writeUInt16BE(type);
  return Buffer.concat([mac(to_mac), mac(from_mac), head, payload]);
}

export interface Arp {
  readonly operation: 1 | 2;
  readonly sender: { readonly mac: string; readonly ip: string };
  readonly target: { readonly mac: string; readonly ip: string };
}

export function arp({ operation, sender, target }: Arp): Buffer {
  const head = Buffer.from([0, 1, 8, 0, 6, 4, 0, operation]);
  return Buffer.concat([head, mac(sender.mac), ip(sender.ip), mac(target.mac), ip(target.ip)]);
}

export interface Packet {
  readonly from: string;
  readonly to: string;
  readonly protocol: number;
  readonly payload: Buffer;
  /** Fragment offset in 8 bytes, and more fragments (bit 13). */
  readonly fragment?: number;
}

export function ipv4({ from, to, protocol, payload, fragment = 0 }: Packet): Buffer {
  const head = Buffer.alloc(20);
  head[0] = 0x45;
  head.writeUInt16BE(20 + payload.length, 2);
  head.writeUInt16BE(fragment, 6);
  head[8] = 64;
  head[9] = protocol;
  ip(from).copy(head, 12);
  ip(to).copy(head, 16);
  head.writeUInt16BE(checksum(head), 10);
  return Buffer.concat([head, payload]);
}

/** An echo request. */
export function ping(id: number): Buffer {
  const message = Buffer.from([8, 0, 0, 0, id >> 8, id & 255, 0, 1, ...Buffer.from('berth')]);
  message.writeUInt16BE(checksum(message), 2);
  return message;
}

function withPseudoHeader(from: string, to: string, protocol: number, segment: Buffer): number {
  const pseudo = Buffer.from([
    ...ip(from),
    ...ip(to),
    0,
    protocol,
    segment.length >> 8,
    segment.length & 255,
  ]);
  return checksum(Buffer.concat([pseudo, segment]));
}

export interface Segment {
  /** Of source and destination. */
  readonly ports: readonly [number, number];
  readonly sequence: number;
  readonly acknowledged?: number;
  readonly flags: number;
}

export function tcp(from: string, to: string, { ports, sequence, acknowledged = 0, flags }: Segment): Buffer {
  const segment = Buffer.alloc(20);
  segment.writeUInt16BE(ports[0], 0);
  segment.writeUInt16BE(ports[1], 2);
  segment.writeUInt32BE(sequence, 4);
  segment.writeUInt32BE(acknowledged >>> 0, 8);
  segment[12] = 0x50;
  segment[13] = flags;
  segment.writeUInt16BE(64_240, 14);
  segment.writeUInt16BE(withPseudoHeader(from, to, PROTOCOL.tcp, segment), 16);
  return segment;
}

export function syn(from: string, to: string, ports: readonly [number, number]): Buffer {
  return tcp(from, to, { ports, sequence: ports[0], flags: 0x02 });
}

export function udp(from: string, to: string, ports: readonly [number, number], data: Buffer): Buffer {
  const head = Buffer.alloc(8);
  head.writeUInt16BE(ports[0], 0);
  head.writeUInt16BE(ports[1], 2);
  head.writeUInt16BE(8 + data.length, 4);
  const datagram = Buffer.concat([head, data]);
  datagram.writeUInt16BE(withPseudoHeader(from, to, PROTOCOL.udp, datagram) || 0xffff, 6);
  return datagram;
}

/** What a received frame says; null where it is no IPv4. */
export function readPacket(frame: Buffer) {
  if (frame.readUInt16BE(12) !== ETHERTYPE.ipv4) return null;
  const packet = frame.subarray(14);
  const dotted = (at: number) => packet.subarray(at, at + 4).join('.');
  const payload = packet.subarray(((packet[0] ?? 0) & 15) * 4, packet.readUInt16BE(2));
  return { from: dotted(12), to: dotted(16), protocol: packet[9] ?? 0, payload };
}
