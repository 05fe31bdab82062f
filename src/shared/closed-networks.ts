/**
 * The networks that no guest may reach, in any egress mode.
 *
 * IPv4: IANA's special-purpose registry (RFC 6890 and later): this network, private, shared (CGNAT), loopback, link-local with
 * cloud metadata, protocol assignments, 6to4 relays, benchmarking, multicast, reserved and broadcast; and one cloud's metadata
 * service at a public address. The documentation ranges (192.0.2.0/24 and others) stay open: they are unused on the internet, and
 * some closed networks use them as public addresses.
 */
import { BlockList, isIP } from 'node:net';
import ipaddr from 'ipaddr.js';

export const CLOSED_IPV4 = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '168.63.129.16/32',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '224.0.0.0/4',
  '240.0.0.0/4',
] as const;

/**
 * Everything outside of 2000::/3 is closed, because it is not global unicast: loopback, mapped (::ffff:0:0/96), translated
 * (64:ff9b::/96), discard, unique local, link-local, site-local, multicast. Inside of it: protocol assignments with Teredo, and 6to4.
 */
export const CLOSED_IPV6 = ['::/3', '4000::/2', '8000::/1', '2001::/23', '2002::/16'] as const;

const PARSED = [...CLOSED_IPV4, ...CLOSED_IPV6].map((cidr) => ipaddr.parseCIDR(cidr));

/** Whether a network, in the form of {@link canonicalCidr}, has an address in common with a closed one. */
export function touchesClosed(cidr: string): boolean {
  const [network, prefix] = ipaddr.parseCIDR(cidr);
  return PARSED.some(([closed, closed_prefix]) => {
    if (closed.kind() !== network.kind()) return false;
    const shorter = Math.min(prefix, closed_prefix);
    return network.match(closed, shorter);
  });
}

/** The closed networks and `more` networks (`address/prefix`) or addresses, as a question about an address. */
export function closedBy(more: readonly string[]): (address: string) => boolean {
  // Apart: a set of both families takes an IPv4 address for a mapped one of ::/3.
  const sets = { 4: new BlockList(), 6: new BlockList() };
  for (const each of [...CLOSED_IPV4, ...CLOSED_IPV6, ...more]) {
    const [address = '', prefix] = each.split('/');
    const family = isIP(address);
    if ((family !== 4 && family !== 6) || address.includes('%')) continue;
    sets[family].addSubnet(
      address,
      prefix === undefined ? (family === 4 ? 32 : 128) : Number(prefix),
      `ipv${family}`,
    );
  }
  return (address) => {
    const family = isIP(address);
    return (family !== 4 && family !== 6) || sets[family].check(address, `ipv${family}`);
  };
}
