/**
 * Looks names up for guests, at the host's resolvers. It follows CNAME chains, and returns their addresses as those of
 * the name that was asked for. Invariant: no answer has a closed address (one of the host or of a private network),
 * whatever a name server says.
 */
import { NODATA, NOTFOUND } from 'node:dns';
import { Resolver } from 'node:dns/promises';
import { errnoOf } from '../shared/errors.ts';

const TIMEOUT_MS = 2_000;
const TRIES = 2;
/** More are cut off. An answer with these fits into a message over UDP. */
export const ADDRESSES_MAX = 24;
const CHAIN_MAX = 8;
/** Guests ask again soon, so that a removed address ends soon; and a TTL of 0 still allows to connect. */
const TTL_MIN_SECONDS = 5;
const TTL_MAX_SECONDS = 60;

export type Family = 4 | 6;

export type LookUp =
  | {
      readonly outcome: 'found';
      readonly addresses: readonly string[];
      readonly ttl_seconds: number;
      /** Closed addresses that the name servers gave. */
      readonly closed: readonly string[];
    }
  | { readonly outcome: 'absent' | 'failed' };

export interface Upstream {
  /** As `dns.setServers` takes them. */
  readonly servers: readonly string[];
  readonly isClosed: (address: string) => boolean;
}

export class NameResolver {
  #resolver: Resolver;
  #isClosed: Upstream['isClosed'];

  constructor({ servers, isClosed }: Upstream) {
    this.#resolver = new Resolver({ timeout: TIMEOUT_MS, tries: TRIES });
    if (servers.length > 0) this.#resolver.setServers(servers);
    this.#isClosed = isClosed;
  }

  /** Look-ups under way keep the old servers. */
  replaceUpstream({ servers, isClosed }: Upstream): void {
    this.#isClosed = isClosed;
    const resolver = new Resolver({ timeout: TIMEOUT_MS, tries: TRIES });
    if (servers.length > 0) resolver.setServers(servers);
    this.#resolver = resolver;
  }

  async lookUp(name: string, family: Family): Promise<LookUp> {
    let target = name;
    for (let links = 0; links <= CHAIN_MAX; links++) {
      const found = await this.#addresses(target, family);
      if (found !== 'none') return found;
      // The server gave no address; it may have given only the first links of a chain.
      const next = await this.#resolver.resolveCname(target).catch(() => []);
      if (next[0] === undefined)
        return { outcome: 'found', addresses: [], ttl_seconds: TTL_MIN_SECONDS, closed: [] };
      target = next[0];
    }
    return { outcome: 'failed' };
  }

  async #addresses(name: string, family: Family): Promise<LookUp | 'none'> {
    try {
      const options = { ttl: true } as const;
      const records = await (family === 4
        ? this.#resolver.resolve4(name, options)
        : this.#resolver.resolve6(name, options));
      const is_closed = ({ address }: { readonly address: string }) => this.isClosed(address);
      const open = records.filter((record) => !is_closed(record)).slice(0, ADDRESSES_MAX);
      const ttl_seconds = Math.min(TTL_MAX_SECONDS, ...open.map(({ ttl }) => ttl));
      return {
        outcome: 'found',
        addresses: open.map(({ address }) => address),
        ttl_seconds: Math.max(TTL_MIN_SECONDS, ttl_seconds),
        closed: records.filter(is_closed).map(({ address }) => address),
      };
    } catch (error) {
      if (errnoOf(error) === NODATA) return 'none';
      return { outcome: errnoOf(error) === NOTFOUND ? 'absent' : 'failed' };
    }
  }

  isClosed(address: string): boolean {
    return this.#isClosed(address);
  }
}
