/** What one TAP device gets: its addresses, and the nftables table that translates and filters its guest's frames. */
import { assert } from '../../shared/assert.ts';
import { GATEWAY, GATEWAY_MAC, GUEST, GUEST_RESOLVER, guestAddress, tapName } from './addresses.ts';

export interface Tap {
  readonly ssh_port: number;
  /** Of the guest's network card. */
  readonly mac: string;
}

/** The input of `ip -batch -`. The kernel removes all of it with the device. */
export function tapAddresses({ ssh_port, mac }: Tap): string {
  const [name, address] = [tapName(ssh_port), guestAddress(ssh_port)];
  return [
    `link set dev ${name} address ${GATEWAY_MAC}`,
    `address replace ${GATEWAY}/32 dev ${name}`,
    `address replace ${GUEST_RESOLVER}/32 dev ${name}`,
    `link set dev ${name} up`,
    // The guest does not know its own address, so it cannot answer for it.
    `neighbour replace ${address} lladdr ${mac} dev ${name} nud permanent`,
    `route replace ${address}/32 dev ${name}`,
    '',
  ].join('\n');
}

/**
 * The input of `nft -f -`, for the table named like the device. Frames from the guest are dropped unless they are IPv4 or ARP with
 * its own MAC and IP address: no IPv6, no VLAN, no other protocol, no other sender.
 *
 * The translation knows no connections, so that everything behind it sees one address for each guest. An ICMP error also holds
 * the start of the packet that it is about, with the guest's address in it. nft would leave its checksum wrong there: a word of
 * the error that is unused (RFC 792) evens it out.
 */
export function tapRules({ ssh_port, mac }: Tap): string {
  assert(/^([0-9a-f]{2}:){5}[0-9a-f]{2}$/.test(mac), 'mac is no MAC address');
  const [name, address] = [tapName(ssh_port), guestAddress(ssh_port)];
  return [
    // Declare the table first, so that deleting it cannot fail: an earlier device of that name may have left it.
    `table netdev ${name} {}`,
    `delete table netdev ${name}`,
    `table netdev ${name} {`,
    '  chain from_guest {',
    `    type filter hook ingress device ${name} priority filter; policy drop;`,
    `    ether saddr ${mac} ip saddr ${GUEST} ip saddr set ${address} accept`,
    `    arp saddr ether ${mac} arp saddr ip ${GUEST} accept`,
    '  }',
    '  chain to_guest {',
    `    type filter hook egress device ${name} priority filter; policy drop;`,
    `    ip daddr ${address} icmp type { destination-unreachable, time-exceeded } @th,32,16 0 @th,160,32 set ${word(GUEST)} @th,32,16 set ${sumWord(address, GUEST)}`,
    `    ip daddr ${address} ip daddr set ${GUEST} accept`,
    '    ether type arp accept',
    '  }',
    '}',
    '',
  ].join('\n');
}

/** An address as a number in hexadecimal. */
function word(address: string): string {
  return `0x${address
    .split('.')
    .map((byte) => Number(byte).toString(16).padStart(2, '0'))
    .join('')}`;
}

/** The 16-bit word that keeps an Internet checksum (RFC 1071) when `from` becomes `to` and a word of 0 becomes it. */
export function sumWord(from: string, to: string): number {
  const sum = (address: string) => {
    const [a = 0, b = 0, c = 0, d = 0] = address.split('.').map(Number);
    return (a << 8) + b + (c << 8) + d;
  };
  return (((sum(from) - sum(to)) % 0xffff) + 0xffff) % 0xffff;
}
