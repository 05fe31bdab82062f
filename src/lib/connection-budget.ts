/**
 * The connections of one listener, or of several that share a bound: so many in all, and so many of one source, which is an IPv4
 * address or an IPv6 /64.
 *
 * Beyond a bound room is made rather than the newcomer refused, because whoever holds connections is no reason to shut others out: the
 * oldest idle connection ends, of that source or of the source with the most. If the largest source has none that is idle, its oldest
 * ends all the same where it has more than twice as many as the newcomer's. Else the newcomer is closed.
 *
 * A proxy in front is one source with the connections of many: it has no bound of its own, and none of its connections in use ends.
 */
import { firstGroups } from './ipv6.ts';
import type { Log } from './log.ts';

const SAY_EVERY_MS = 60_000;
const GROUPS_OF_A_NETWORK = 4;

/** What a connection is known by; a TLS or HTTP/2 socket has the same as the socket below. */
export interface Ends {
  readonly remoteAddress?: string | undefined;
  readonly remotePort?: number | undefined;
  readonly localAddress?: string | undefined;
  readonly localPort?: number | undefined;
}

export interface BoundConnection extends Ends {
  destroy(): unknown;
  once(event: 'close', then: () => void): unknown;
}

export interface ConnectionBudgetOptions {
  readonly most: number;
  /** Of one source; never more than half of `most`. */
  readonly per_source: number;
  readonly isProxy?: ((address: string) => boolean) | undefined;
  /** Says that the bounds were met. */
  readonly log?: Log | undefined;
}

interface Source {
  readonly name: string;
  readonly is_proxy: boolean;
  /** Longest idle first. */
  readonly idle: Set<Held>;
  /** Oldest first. */
  readonly used: Set<Held>;
}

interface Held {
  readonly connection: BoundConnection;
  readonly source: Source;
  uses: number;
}

export class ConnectionBudget {
  readonly #options: ConnectionBudgetOptions;
  readonly #per_source: number;
  readonly #sources = new Map<string, Source>();
  readonly #held = new Map<string, Held>();
  #said_at_ms = Number.NEGATIVE_INFINITY;

  constructor(options: ConnectionBudgetOptions) {
    this.#options = options;
    this.#per_source = Math.min(options.per_source, Math.ceil(options.most / 2));
  }

  /** Counts a new connection, idle at first. False: there is no room, and it was closed. */
  admit(connection: BoundConnection): boolean {
    const { remoteAddress } = connection;
    const source = remoteAddress === undefined ? undefined : this.#sourceOf(remoteAddress);
    if (!source || !this.#hasRoom(source)) {
      connection.destroy();
      return false;
    }
    const key = keyOf(connection);
    const held: Held = { connection, source, uses: 0 };
    source.idle.add(held);
    this.#sources.set(source.name, source);
    this.#held.set(key, held);
    connection.once('close', () => {
      this.#remove(held);
      if (this.#held.get(key) === held) this.#held.delete(key);
    });
    return true;
  }

  /** The connection is not idle until the returned function is called. */
  use(connection: Ends): () => void {
    const held = this.#held.get(keyOf(connection));
    if (!held) return () => undefined;
    const { idle, used } = held.source;
    held.uses += 1;
    if (idle.delete(held)) used.add(held);
    let is_over = false;
    return () => {
      if (is_over) return;
      is_over = true;
      held.uses -= 1;
      if (held.uses === 0 && used.delete(held)) idle.add(held);
    };
  }

  isUsed(connection: Ends): boolean {
    return (this.#held.get(keyOf(connection))?.uses ?? 0) > 0;
  }

  #sourceOf(address: string): Source {
    const name = sourceOf(address);
    const known = this.#sources.get(name);
    if (known) return known;
    const is_proxy = this.#options.isProxy?.(plainAddress(address)) === true;
    return { name, is_proxy, idle: new Set(), used: new Set() };
  }

  #hasRoom(source: Source): boolean {
    if (!source.is_proxy && sizeOf(source) >= this.#per_source) {
      this.#say(source, 'an address has as many connections as it may have');
      return this.#end(source.idle);
    }
    if (this.#held.size < this.#options.most) return true;
    const largest = this.#largest();
    if (!largest) return false;
    this.#say(largest, 'there are as many connections as this process may have');
    if (this.#end(largest.idle)) return true;
    return sizeOf(largest) > 2 * (sizeOf(source) + 1) && this.#end(largest.used);
  }

  /** Of those that may lose a connection. */
  #largest(): Source | undefined {
    let largest: Source | undefined;
    for (const each of this.#sources.values()) {
      const may_lose = !each.is_proxy || each.idle.size > 0;
      if (may_lose && sizeOf(each) > (largest ? sizeOf(largest) : 0)) largest = each;
    }
    return largest;
  }

  /** Ends the first of them. */
  #end(connections: ReadonlySet<Held>): boolean {
    const [first] = connections;
    if (!first) return false;
    // Its event comes later than the next newcomer may.
    this.#remove(first);
    this.#held.delete(keyOf(first.connection));
    first.connection.destroy();
    return true;
  }

  #remove(held: Held): void {
    const { source } = held;
    source.idle.delete(held);
    source.used.delete(held);
    if (sizeOf(source) === 0) this.#sources.delete(source.name);
  }

  #say(source: Source, what: string): void {
    const now_ms = performance.now();
    if (now_ms - this.#said_at_ms < SAY_EVERY_MS) return;
    this.#said_at_ms = now_ms;
    const { most } = this.#options;
    this.#options.log?.warn(
      { source: source.name, of_source: sizeOf(source), per_source: this.#per_source, most },
      `${what}: the oldest idle one is ended for each new one. BERTH_CONNECTIONS_PER_ADDRESS and BERTH_TRUSTED_PROXIES say how many an address may have, and which carry those of others`,
    );
  }
}

function sizeOf({ idle, used }: Source): number {
  return idle.size + used.size;
}

function keyOf({ remoteAddress, remotePort, localAddress, localPort }: Ends): string {
  return `${remoteAddress} ${remotePort} ${localAddress} ${localPort}`;
}

/** Without what a socket for both families writes before an IPv4 address, and without a zone. */
export function plainAddress(address: string): string {
  return address.replace(/^::ffff:(?=[0-9.]+$)/i, '').replace(/%.*$/, '');
}

/** An IPv4 address, or an IPv6 /64: one customer has all addresses in it. */
export function sourceOf(address = ''): string {
  const plain = plainAddress(address);
  return plain.includes(':') ? firstGroups(plain, GROUPS_OF_A_NETWORK) : plain;
}

/** The events of an HTTP server of Node. */
interface HttpServerEvents {
  on(event: 'connection', then: (socket: BoundConnection) => void): unknown;
  on(event: 'request', then: (request: { readonly socket: Ends }, response: Closing) => void): unknown;
  on(event: 'upgrade', then: (request: unknown, socket: Ends & Closing) => void): unknown;
  listenerCount(event: 'upgrade'): number;
}

interface Closing {
  once(event: 'close', then: () => void): unknown;
}

/** A connection of `server` is in use during a request, and from an upgrade on. Call it when the server's own listeners are there. */
export function boundHttp(server: HttpServerEvents, budget: ConnectionBudget): void {
  server.on('connection', (socket) => void budget.admit(socket));
  server.on('request', ({ socket }, response) => void response.once('close', budget.use(socket)));
  // Without a listener Node serves such a request as any other.
  if (server.listenerCount('upgrade') > 0)
    server.on('upgrade', (_request, socket) => void socket.once('close', budget.use(socket)));
}
