/**
 * Bounds the open connections of one listener, or of several together: in total, and per source (an IPv4 address or an
 * IPv6 /64). At a bound it closes an older connection to admit the new one, so that no client can lock others out:
 *
 * - A source is at its bound: its longest idle connection is closed.
 * - The total is reached, and over a quarter are idle: the source with the most idle ones loses its longest idle one.
 * - The total is reached, and fewer are idle: the source with the most connections in use loses one, an idle one first,
 *   if it holds over twice as many as the newcomer's source. Otherwise the source with the most idle ones loses one.
 * - The rule finds no connection to close: the newcomer is closed.
 *
 * A trusted proxy (`isProxy`) carries many clients: it has no bound of its own, and none of its connections in use is
 * closed. A trusted connection (`trust`: its caller proved who it is) counts only in the total, and is never closed.
 */
import { existsSync, readFileSync } from 'node:fs';
import type { Log } from './log.ts';
import { firstGroups } from './networks.ts';

const SAY_EVERY_MS = 60_000;
const GROUPS_OF_A_NETWORK = 4;
/** Of all connections: with more idle ones no connection in use ends. */
const IDLE_SHARE = 0.25;

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

/** In `idle` or `used` of its source, or trusted. */
interface Held {
  /** A closed socket has no addresses. */
  readonly key: string;
  readonly connection: BoundConnection;
  readonly source: Source;
  uses: number;
  is_trusted: boolean;
}

const NONE: ReadonlySet<Held> = new Set();

/** Sources by how many connections they have of one kind. A size changes by one, so the largest is found without a search. */
class SourcesBySize {
  readonly #sources: Set<Source>[] = [];

  move(source: Source, from: number, to: number): void {
    this.#sources[from]?.delete(source);
    const others = this.#sources[to];
    if (others) others.add(source);
    else if (to > 0) this.#sources[to] = new Set([source]);
    while (this.#sources.length > 0 && !this.#sources.at(-1)?.size) this.#sources.pop();
  }

  largest(): Source | undefined {
    const [first] = this.#sources.at(-1) ?? [];
    return first;
  }
}

export class ConnectionBudget {
  readonly #options: ConnectionBudgetOptions;
  readonly #per_source: number;
  readonly #sources = new Map<string, Source>();
  readonly #held = new Map<string, Held>();
  readonly #by_idle = new SourcesBySize();
  /** Without proxies. */
  readonly #by_used = new SourcesBySize();
  #idle = 0;
  #trusted = 0;
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
    const held: Held = { key, connection, source, uses: 0, is_trusted: false };
    this.#sources.set(source.name, source);
    this.#held.set(key, held);
    this.#put(held, 'idle');
    connection.once('close', () => this.#remove(held));
    return true;
  }

  /** The connection is not idle until the returned function is called. */
  use(connection: Ends): () => void {
    const held = this.#held.get(keyOf(connection));
    if (!held) return () => undefined;
    held.uses += 1;
    if (this.#takeOut(held, 'idle')) this.#put(held, 'used');
    let is_over = false;
    return () => {
      if (is_over) return;
      is_over = true;
      held.uses -= 1;
      if (held.uses === 0 && this.#takeOut(held, 'used')) this.#put(held, 'idle');
    };
  }

  isUsed(connection: Ends): boolean {
    return (this.#held.get(keyOf(connection))?.uses ?? 0) > 0;
  }

  /** Call it for one whose caller has proved who it is. False: as many as this share of all connections are trusted already. */
  trust(connection: Ends, share = 1): boolean {
    const held = this.#held.get(keyOf(connection));
    if (!held) return false;
    const others = this.#trusted - (held.is_trusted ? 1 : 0);
    if (others >= share * this.#options.most) return false;
    if (held.is_trusted) return true;
    held.is_trusted = true;
    this.#trusted += 1;
    this.#leaveSource(held);
    return true;
  }

  #sourceOf(address: string): Source {
    const plain = plainAddress(address);
    const is_proxy = this.#options.isProxy?.(plain) === true;
    const name = is_proxy ? plain : sourceOf(plain);
    return this.#sources.get(name) ?? { name, is_proxy, idle: new Set(), used: new Set() };
  }

  #hasRoom(source: Source): boolean {
    if (!source.is_proxy && sizeOf(source) >= this.#per_source) {
      this.#say('an address has as many connections as it may have', source);
      return this.#end(source.idle);
    }
    if (this.#held.size < this.#options.most) return true;
    this.#say('there are as many connections as this process may have', source);
    const idle = this.#by_idle.largest()?.idle ?? NONE;
    if (this.#idle > IDLE_SHARE * this.#options.most) return this.#end(idle);
    const largest = this.#by_used.largest();
    const is_larger = largest !== undefined && sizeOf(largest) > 2 * (sizeOf(source) + 1);
    return (is_larger && (this.#end(largest.idle) || this.#end(largest.used))) || this.#end(idle);
  }

  /** Ends the first of them. */
  #end(connections: ReadonlySet<Held>): boolean {
    const [first] = connections;
    if (!first) return false;
    // Its event comes later than the next newcomer may.
    this.#remove(first);
    first.connection.destroy();
    return true;
  }

  /** Without effect for one that is removed. */
  #remove(held: Held): void {
    if (this.#held.get(held.key) !== held) return;
    this.#held.delete(held.key);
    if (held.is_trusted) this.#trusted -= 1;
    this.#leaveSource(held);
  }

  #leaveSource(held: Held): void {
    const { source } = held;
    const was_in = this.#takeOut(held, 'idle') || this.#takeOut(held, 'used');
    if (was_in && sizeOf(source) === 0) this.#sources.delete(source.name);
  }

  #put(held: Held, kind: 'idle' | 'used'): void {
    const { source } = held;
    source[kind].add(held);
    if (kind === 'idle') this.#idle += 1;
    this.#rank(source, kind, source[kind].size - 1);
  }

  /** False: it is not there. */
  #takeOut(held: Held, kind: 'idle' | 'used'): boolean {
    const { source } = held;
    if (!source[kind].delete(held)) return false;
    if (kind === 'idle') this.#idle -= 1;
    this.#rank(source, kind, source[kind].size + 1);
    return true;
  }

  #rank(source: Source, kind: 'idle' | 'used', size_before: number): void {
    if (kind === 'idle') this.#by_idle.move(source, size_before, source.idle.size);
    else if (!source.is_proxy) this.#by_used.move(source, size_before, source.used.size);
  }

  #say(what: string, source: Source): void {
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

/**
 * Open files that connections from outside do not get, because a process at its limit could not reach its database:
 * for the database, internal listeners, the listening sockets, files and programs.
 */
const RESERVE = 4_096;
const RESERVED_SHARE = 0.25;

/** Node raises it to the highest that the system allows. */
export function openFilesLimit(): number {
  const limits = '/proc/self/limits';
  if (!existsSync(limits)) return Number.POSITIVE_INFINITY;
  const found = /^Max open files +([0-9]+)/m.exec(readFileSync(limits, 'latin1'));
  return found ? Number(found[1]) : Number.POSITIVE_INFINITY;
}

/** How many of them connections from outside may take, with what each opens. */
export function filesForConnections(open_files: number): number {
  return open_files - Math.min(RESERVE, Math.ceil(open_files * RESERVED_SHARE));
}
