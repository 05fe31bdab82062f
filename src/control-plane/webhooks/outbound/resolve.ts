/**
 * Resolves names for {@link Outbound}, the hosts file first. Uses c-ares: getaddrinfo would block one of libuv's four
 * threads for each name whose server is silent, and with them every file operation of the process.
 */
import { Resolver } from 'node:dns/promises';
import { readFile } from 'node:fs/promises';
import { isIP } from 'node:net';

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
