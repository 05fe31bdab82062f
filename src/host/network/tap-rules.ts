/**
 * The nftables rules of the guests' network namespace. They name no VM: every TAP device is `vm…`, and its own table gives its guest
 * one address that cannot be forged (`tapRules`).
 */
import { isIP } from 'node:net';
import { assert } from '../../shared/assert.ts';
import { CLOSED_IPV4 } from '../../shared/networks.ts';
import {
  DENIED_SET,
  GATEWAY,
  GATEWAY_MAC,
  GUEST,
  GUEST_RESOLVER,
  GUESTS,
  guestAddress,
  HOST_END,
  LOG_DENIED,
  PROXY_MARK,
  tapName,
} from './addresses.ts';
import { networkRule, resolverRules } from './user-network-rules.ts';

/** Open connections of one guest to the outside and to the egress proxy: tracking them takes memory of the host. */
export const CONNECTIONS_MAX = 8_192;
export const LINK = 'host';
const COUNT_CONNECTIONS = `ct state new add @connections { ip saddr ct count over ${CONNECTIONS_MAX} } goto refuse`;

export interface GuestsRules {
  /** IPv4 addresses of the host's resolvers. The first answers the guests. */
  readonly resolvers: readonly string[];
  /** The host's networks and its own addresses (`address/prefix`). */
  readonly host_networks: readonly string[];
}

/** The input of `nft -f -`, which creates or replaces the table `inet guests` in one transaction. */
export function guestsRules({ resolvers, host_networks }: GuestsRules): string {
  const [resolver] = resolvers;
  const ipv4_networks = host_networks.filter((each) => isIP(each.split('/')[0] ?? '') === 4);
  return [
    // Declare the table first, so that deleting it cannot fail.
    'table inet guests {}',
    'delete table inet guests',
    'table inet guests {',
    '  set connections { type ipv4_addr; size 65535; flags dynamic; }',
    DENIED_SET,
    '  chain prerouting {',
    '    type nat hook prerouting priority dstnat; policy accept;',
    '    iifname "vm*" jump guest_dstnat',
    '  }',
    '  chain guest_dstnat {',
    ...(resolver === undefined
      ? []
      : ['udp', 'tcp'].map(
          (protocol) => `    ip daddr ${GUEST_RESOLVER} ${protocol} dport 53 dnat ip to ${resolver}`,
        )),
    '  }',
    '  chain postrouting {',
    '    type nat hook postrouting priority srcnat; policy accept;',
    // A guest sees connections from this host as those of its gateway.
    `    oifname "vm*" ip saddr ${HOST_END} snat ip to ${GATEWAY}`,
    '  }',
    '  chain input {',
    '    type filter hook input priority filter; policy drop;',
    '    ct state established,related accept',
    `    iifname "vm*" ip saddr ${GUESTS} jump guest_input`,
    '  }',
    '  chain guest_input {',
    '    icmp type echo-request accept',
    // Only the rules of restricted guests set it.
    `    meta mark != ${PROXY_MARK} goto refuse`,
    `    ${COUNT_CONNECTIONS}`,
    '    accept',
    '  }',
    '  chain forward {',
    '    type filter hook forward priority filter; policy drop;',
    `    iifname "vm*" ip saddr ${GUESTS} jump guest`,
    '    oifname "vm*" jump to_guest',
    '  }',
    '  chain guest {',
    '    ct state established,related accept',
    '    ct state invalid drop',
    ...resolverRules('ip', resolvers),
    ...ipv4_networks.flatMap(networkRule),
    `    ip daddr { ${CLOSED_IPV4.join(', ')} } goto refuse`,
    `    ${COUNT_CONNECTIONS}`,
    `    oifname "${LINK}" accept`,
    '  }',
    '  chain to_guest {',
    '    ct state established,related accept',
    `    iifname "${LINK}" ip saddr ${HOST_END} accept`,
    '  }',
    '  chain refuse {',
    `    ${LOG_DENIED}`,
    '    meta l4proto tcp counter reject with tcp reset',
    '    counter reject with icmpx admin-prohibited',
    '  }',
    '}',
    '',
  ].join('\n');
}

/** What one TAP device gets: its addresses, and the nftables table that translates and filters its guest's frames. */

export interface Tap {
  readonly slot: number;
  /** Of the guest's network card. */
  readonly mac: string;
}

/** The input of `ip -batch -`. The kernel removes all of it with the device. */
export function tapAddresses({ slot, mac }: Tap): string {
  const [name, address] = [tapName(slot), guestAddress(slot)];
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
export function tapRules({ slot, mac }: Tap): string {
  assert(/^([0-9a-f]{2}:){5}[0-9a-f]{2}$/.test(mac), 'mac is no MAC address');
  const [name, address] = [tapName(slot), guestAddress(slot)];
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

/** The chains in the host's own network namespace for guests with TAP devices: part of the table of vm/egress.ts. */

/** Every installation's end of its link has this prefix. */
export const LINK_PREFIX = 'berth-';

export interface HostChains {
  /** The host's end of the link to the guests. */
  readonly link: string;
  readonly resolvers: readonly string[];
  /** Interfaces that forward only since we need it; see below. */
  readonly uplinks: readonly string[];
}

/**
 * Guests reach nothing on the host but its resolvers; nothing but the host itself connects to a guest; what leaves the host has
 * the host's address.
 *
 * Where the host did not forward packets before, its uplinks do now, but for guests only: a neighbour of the host must not use it
 * as a router.
 */
export function hostChains({ link, resolvers, uplinks }: HostChains): string[] {
  const names = uplinks.map((each) => `"${each}"`).join(', ');
  return [
    '  chain output_to_guests {',
    '    type filter hook output priority filter; policy accept;',
    `    oifname "${link}" ct state new jump to_guests`,
    '  }',
    '  chain to_guests {',
    // Other users of this machine connect through the ingress, which checks who may use a port.
    '    meta skuid != 0 goto refuse',
    '  }',
    '  chain input {',
    '    type filter hook input priority filter; policy accept;',
    `    iifname "${link}" jump from_guests`,
    '  }',
    '  chain from_guests {',
    '    ct state established,related accept',
    ...resolverRules('ip', resolvers),
    '    goto refuse',
    '  }',
    '  chain forward {',
    '    type filter hook forward priority filter; policy accept;',
    // Where the way out takes smaller packets than ours.
    `    iifname "${link}" tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu`,
    `    oifname "${link}" tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu`,
    `    oifname "${link}" ct state != { established, related } drop`,
    ...(uplinks.length === 0 ? [] : [`    iifname { ${names} } oifname != "${LINK_PREFIX}*" drop`]),
    '  }',
    '  chain postrouting {',
    '    type nat hook postrouting priority srcnat; policy accept;',
    `    ip saddr ${GUESTS} oifname != "${LINK_PREFIX}*" masquerade`,
    '  }',
  ];
}
