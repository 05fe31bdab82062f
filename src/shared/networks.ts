/**
 * The networks that a key may be used from (`allowed_cidrs`). They are stored in one form: the network's own address, IPv6 by
 * RFC 5952, IPv4-mapped addresses as IPv4, a single address with its full prefix. An empty list allows every address.
 */
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
