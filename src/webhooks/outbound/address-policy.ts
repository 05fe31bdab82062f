/**
 * Which addresses a webhook may reach. Global unicast alone; everything else (loopback, private, shared, link-local,
 * metadata, multicast, reserved, and whatever carries an IPv4 address inside: mapped, NAT64, 6to4, Teredo, ISATAP) is
 * refused whatever it leads to. The networks that the operator allows are the one exception, and the only ones that
 * are spoken to without TLS. Pure; asked at creation and again about each address dialled.
 */
import { isIP } from 'node:net';
import ipaddr from 'ipaddr.js';

/** One network of BERTH_WEBHOOK_ALLOW_CIDRS, as the configuration has it. */
export interface Network {
  readonly address: string;
  readonly prefix: number;
}

export type Protocol = 'https:' | 'http:';

/** Says why `address` (as node:net takes it) may not be reached; null when it may. */
export function refusal(address: string, protocol: Protocol, allow: readonly Network[]): string | null {
  // The library reads more notations than what dials; a scope (fe80::1%eth0) names an interface of this machine.
  if (isIP(address) === 0 || address.includes('%')) return 'is no address that a webhook may reach';
  const parsed = ipaddr.parse(address);
  if (allow.some((network) => contains(network, parsed))) return null;
  if (protocol === 'http:') return 'is not in a network that may be reached without TLS';
  return isPublic(parsed) ? null : 'is not a public address';
}

function contains(network: Network, address: ipaddr.IPv4 | ipaddr.IPv6): boolean {
  const base = ipaddr.parse(network.address);
  return base.kind() === address.kind() && address.match(base, network.prefix);
}

/** Azure's address for its guests looks like any other. */
const AZURE_WIRE_SERVER = '168.63.129.16';
/** All that is handed out of IPv6; also leaves out ::/96, NAT64 and whatever comes to be reserved elsewhere. */
const GLOBAL_UNICAST = ipaddr.IPv6.parseCIDR('2000::/3');

function isPublic(address: ipaddr.IPv4 | ipaddr.IPv6): boolean {
  if (address.range() !== 'unicast') return false;
  if (address instanceof ipaddr.IPv4) return address.toString() !== AZURE_WIRE_SERVER;
  return address.match(...GLOBAL_UNICAST) && !isIsatap(address);
}

/** RFC 5214: the interface identifier is 0000:5efe or 0200:5efe and an IPv4 address. */
function isIsatap({ parts }: ipaddr.IPv6): boolean {
  return (parts[4] === 0 || parts[4] === 0x200) && parts[5] === 0x5efe;
}
