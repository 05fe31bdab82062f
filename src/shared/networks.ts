/**
 * Parses, normalises and compares networks: those that an API key may be used from (`allowed_cidrs`), those of trusted
 * proxies, and those that no guest may reach (`CLOSED_IPV4`, `CLOSED_IPV6`).
 *
 * A stored network begins at its own address. IPv6 is written by RFC 5952, an IPv4-mapped address as IPv4, a single
 * address with its full prefix. A key with an empty list may be used from every address.
 */
import { BlockList, isIP } from 'node:net';
import ipaddr from 'ipaddr.js';
import { invalid } from './errors.ts';

export const MAX_NETWORKS = 50;
/** Of ::ffff:0:0/96, in which IPv4 addresses are mapped. */
const MAPPED_BITS = 96;

type Address = ipaddr.IPv4 | ipaddr.IPv6;

/** A network in its stored form; null when the text is none. Octal, hexadecimal and shortened IPv4 are refused. */
export function canonicalCidr(text: string): string | null {
  const slash = text.indexOf('/');
  const address = parseAddress(slash === -1 ? text : text.slice(0, slash));
  if (address === null) return null;
  const bits = address.kind() === 'ipv4' ? 32 : 128;
  const prefix_text = slash === -1 ? String(bits) : text.slice(slash + 1);
  if (!/^(0|[1-9][0-9]{0,2})$/.test(prefix_text)) return null;
  const prefix = Number(prefix_text);
  if (prefix > bits) return null;
  if (address instanceof ipaddr.IPv6 && address.isIPv4MappedAddress() && prefix >= MAPPED_BITS) {
    return networkOf(address.toIPv4Address(), prefix - MAPPED_BITS);
  }
  return networkOf(address, prefix);
}

/** The list in its stored form, without duplicates. @throws AppError INVALID_REQUEST naming the first that is no network */
export function canonicalCidrs(texts: readonly string[]): string[] {
  const kept = texts.map((text, index) => {
    const cidr = canonicalCidr(text);
    if (cidr === null) {
      throw invalid(
        `allowed_cidrs.${index}`,
        'must be an address or network such as 203.0.113.0/24 or 2001:db8::/32',
      );
    }
    return cidr;
  });
  if (kept.length > MAX_NETWORKS) throw invalid('allowed_cidrs', `has at most ${MAX_NETWORKS} networks`);
  return [...new Set(kept)];
}

/** Whether a request from `address` may use a key with these networks. A text that is no address matches no network. */
export function addressAllowed(cidrs: readonly string[], address: string): boolean {
  if (cidrs.length === 0) return true;
  let from = parseAddress(address);
  if (from instanceof ipaddr.IPv6 && from.isIPv4MappedAddress()) from = from.toIPv4Address();
  if (from === null) return false;
  for (const cidr of cidrs) {
    const [network, prefix] = ipaddr.parseCIDR(cidr);
    if (network.kind() === from.kind() && from.match(network, prefix)) return true;
  }
  return false;
}

/** Whether one of these networks contains all of a network (in its stored form). */
export function networkWithin(cidr: string, cidrs: readonly string[]): boolean {
  const [network, prefix] = ipaddr.parseCIDR(cidr);
  return cidrs.some((each) => {
    const [outer, outer_prefix] = ipaddr.parseCIDR(each);
    return outer.kind() === network.kind() && outer_prefix <= prefix && network.match(outer, outer_prefix);
  });
}

function parseAddress(text: string): Address | null {
  if (ipaddr.IPv4.isValidFourPartDecimal(text)) return ipaddr.IPv4.parse(text);
  if (!text.includes(':') || text.includes('%') || !ipaddr.IPv6.isValid(text)) return null;
  return ipaddr.IPv6.parse(text);
}

function networkOf(address: Address, prefix: number): string {
  const bytes = address.toByteArray().map((byte, index) => {
    const kept_bits = Math.min(8, Math.max(0, prefix - index * 8));
    return byte & (0xff << (8 - kept_bits)) & 0xff;
  });
  const network = ipaddr.fromByteArray(bytes);
  const text = network instanceof ipaddr.IPv6 ? network.toRFC5952String() : network.toString();
  return `${text}/${prefix}`;
}

/**
 * The first `count` of the eight groups of an IPv6 address, in hexadecimal without leading zeros (RFC 5952, section 4.1),
 * joined by colons: the prefix of a network. The address must be valid.
 */
export function firstGroups(address: string, count: number): string {
  const [head = '', tail] = address.split('::');
  const first = head.split(':').filter((part) => part !== '');
  const last = (tail ?? '').split(':').filter((part) => part !== '');
  const zeros = tail === undefined ? 0 : Math.max(0, 8 - first.length - last.length);
  return [...first, ...Array<string>(zeros).fill('0'), ...last]
    .slice(0, count)
    .map((part) => Number.parseInt(part, 16).toString(16))
    .join(':');
}

const LOOPBACK = new BlockList();
LOOPBACK.addSubnet('127.0.0.0', 8, 'ipv4');
LOOPBACK.addAddress('::1', 'ipv6');

/** True when only this machine can reach that host. */
export function isLoopback(host: string): boolean {
  const family = isIP(host);
  if (family === 0) return host.toLowerCase() === 'localhost';
  return LOOPBACK.check(host, family === 6 ? 'ipv6' : 'ipv4');
}

/** Proxies in front (BERTH_TRUSTED_PROXIES): their `X-Forwarded-*` are believed, and their connections are those of many. */
export class TrustedProxies {
  readonly #list = new BlockList();

  constructor(
    networks: readonly {
      readonly address: string;
      readonly prefix: number;
      readonly family: 'ipv4' | 'ipv6';
    }[],
  ) {
    for (const { address, prefix, family } of networks) this.#list.addSubnet(address, prefix, family);
  }

  has(address: string): boolean {
    return isIP(address) !== 0 && this.#list.check(address, isIP(address) === 6 ? 'ipv6' : 'ipv4');
  }
}

/**
 * The networks that no guest may reach, in any egress mode.
 *
 * IPv4: IANA's special-purpose registry (RFC 6890 and later): this network, private, shared (CGNAT), loopback, link-local with
 * cloud metadata, protocol assignments, 6to4 relays, benchmarking, multicast, reserved and broadcast; and one cloud's metadata
 * service at a public address. The documentation ranges (192.0.2.0/24 and others) stay open: they are unused on the internet, and
 * some closed networks use them as public addresses.
 */
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
