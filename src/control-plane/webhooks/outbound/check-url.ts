/**
 * Checks the text of a webhook's URL: https (http only if the operator allows networks), no user, no fragment, no
 * forbidden literal address. The URL parser normalises notations first: `2130706433`, `0x7f.1` and `017700000001` are
 * 127.0.0.1.
 */
import { Resolver } from 'node:dns/promises';
import { readFile } from 'node:fs/promises';
import { isIP } from 'node:net';
import ipaddr from 'ipaddr.js';
import { invalid } from '../../../shared/errors.ts';

/**
 * The addresses that a webhook may reach: global unicast only. It refuses loopback, private, shared, link-local,
 * metadata, multicast and reserved addresses, and those that embed an IPv4 address (mapped, NAT64, 6to4, Teredo,
 * ISATAP). Networks that the operator allows are the one exception, and the only ones that may be reached without TLS.
 * Pure; applied when a webhook is created and to each address that is dialled.
 */

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

const MAX_URL_LENGTH = 2048;

/** @throws AppError INVALID_REQUEST about `url` */
export function checkUrl(text: string, allow: readonly Network[]): URL {
  // The parser would drop or encode these silently.
  // biome-ignore lint/suspicious/noControlCharactersInRegex: it refuses them
  if (/[\u0000-\u0020\u007f]/.test(text))
    throw invalid('url', 'must have no space or control character in it');
  const url = URL.parse(text);
  if (url === null) throw invalid('url', 'must be a whole address such as https://example.org/hook');
  if (text.length > MAX_URL_LENGTH || url.href.length > MAX_URL_LENGTH) {
    throw invalid('url', `must have at most ${MAX_URL_LENGTH} characters`);
  }
  const protocol = protocolOf(url);
  if (protocol === null) throw invalid('url', 'must begin with https://');
  if (url.username !== '' || url.password !== '') throw invalid('url', 'must hold no user or password');
  if (text.includes('#')) throw invalid('url', 'must have no fragment (#…): it would never be sent');
  if (url.port === '0') throw invalid('url', 'must have a port from 1 to 65535');
  if (protocol === 'http:' && allow.length === 0) throw invalid('url', 'must begin with https://');
  const literal = literalOf(url);
  const reason = literal === null ? null : refusal(literal, protocol, allow);
  if (reason !== null) throw invalid('url', `its address ${reason}`);
  return url;
}

export function protocolOf({ protocol }: URL): Protocol | null {
  return protocol === 'https:' || protocol === 'http:' ? protocol : null;
}

/** The address in the URL, without brackets; null when its host is a name. */
export function literalOf({ hostname }: URL): string | null {
  const bare = hostname.replace(/^\[(.*)\]$/, '$1');
  return isIP(bare) === 0 ? null : bare;
}

/**
 * Resolves names for {@link Outbound}, the hosts file first. Uses c-ares: getaddrinfo would block one of libuv's four
 * threads for each name whose server is silent, and with them every file operation of the process.
 */

/** All addresses of a name; @throws NameUnknown */
export type Resolve = (name: string) => Promise<readonly string[]>;

export class NameUnknown extends Error {
  override name = 'NameUnknown';
}

const QUERY_TIMEOUT_MS = 2_000;
const TRIES = 2;
/** A name with more addresses is refused. */
const MAX_ADDRESSES = 32;

/** @param servers name servers (`ADDRESS:PORT`) instead of the machine's */
export function createResolve(servers?: readonly string[]): Resolve {
  const resolver = new Resolver({ timeout: QUERY_TIMEOUT_MS, tries: TRIES });
  if (servers) resolver.setServers(servers);
  return async (name) => {
    const bare = name.toLowerCase().replace(/\.$/, '');
    const fixed = await fromHosts(bare);
    if (fixed.length > 0) return fixed;
    // Not for name servers (RFC 6761).
    if (bare === 'localhost' || bare.endsWith('.localhost')) return ['127.0.0.1', '::1'];
    const found = await Promise.allSettled([resolver.resolve4(bare), resolver.resolve6(bare)]);
    const addresses = found.flatMap((each) => (each.status === 'fulfilled' ? each.value : []));
    if (addresses.length === 0 || addresses.length > MAX_ADDRESSES) {
      throw new NameUnknown(addresses.length === 0 ? 'no address' : 'too many addresses');
    }
    return addresses;
  };
}

async function fromHosts(name: string): Promise<string[]> {
  const text = await readFile('/etc/hosts', 'utf8').catch(() => '');
  return text.split('\n').flatMap((line) => {
    const [address = '', ...names] = line.replace(/#.*/, '').trim().split(/\s+/);
    return isIP(address) !== 0 && names.some((each) => each.toLowerCase() === name) ? [address] : [];
  });
}
