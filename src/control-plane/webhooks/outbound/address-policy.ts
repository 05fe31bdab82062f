/**
 * The addresses that a webhook may reach: global unicast only. It refuses loopback, private, shared, link-local,
 * metadata, multicast and reserved addresses, and those that embed an IPv4 address (mapped, NAT64, 6to4, Teredo,
 * ISATAP). Networks that the operator allows are the one exception, and the only ones that may be reached without TLS.
 * Pure; applied when a webhook is created and to each address that is dialled.
 */
import { isIP } from 'node:net';
import ipaddr from 'ipaddr.js';

/** A network of BERTH_WEBHOOK_ALLOW_CIDRS. */
export interface Network {
  readonly address: string;
  readonly prefix: number;
}

export type Protocol = 'https:' | 'http:';

/** Why `address`, in the notation of node:net, may not be reached; null when it may. */
export function refusal(address: string, protocol: Protocol, allow: readonly Network[]): string | null {
  // ipaddr.js accepts more notations than node:net; a scope (fe80::1%eth0) names an interface of this machine.
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

/** Azure's metadata service has a public address. */
const AZURE_WIRE_SERVER = '168.63.129.16';
/** The only allocated range of IPv6; it excludes ::/96, NAT64 and future reservations. */
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
