/**
 * One VM, as the egress proxy knows it: its policy, its secrets, its open connections, and the addresses that its names
 * were resolved to. The handlers ask it what the VM may look up and connect to.
 *
 * Invariants:
 * - After a change of policy or secrets, only connections that are still permitted are open.
 * - A guest gets an address of an allowed name only after the kernel admits the guest's first packets to that address
 *   (host/egress/resolved-addresses.ts).
 */
import { isIPv4 } from 'node:net';
import type { Denials } from '../protocol/denials.ts';
import type { Denial, GuestPolicy } from '../protocol/egress-proxy-messages.ts';
import { coversHost, type GuestSecret } from '../protocol/egress-proxy-messages.ts';
import {
  activeEntries,
  allowsAddress,
  allowsName,
  type EgressEntry,
  type EgressPolicy,
} from '../shared/egress-policy.ts';
import type { Family, LookUp, NameResolver } from './name-resolver.ts';

/** Connections of one VM at a time. */
const CONNECTIONS_MAX = 1_024;
/** Look-ups of one VM at a time. */
const LOOK_UPS_MAX = 64;
/** A client connects some time after its look-up. */
const GRACE_MS = 30_000;
const LEARN_AGAIN_MS = 3_600_000;

export interface HeldConnection {
  /** Asked after each change of the policy. */
  readonly isPermitted: () => boolean;
  readonly cut: () => void;
}

export interface ProxiedGuestOptions {
  /** Of all guests. */
  readonly resolver: Pick<NameResolver, 'lookUp' | 'isClosed'>;
  readonly denials: Pick<Denials, 'add'>;
  /** Has the kernel let first packets of this one pass. @throws when it does not */
  readonly admit: (addresses: readonly string[]) => Promise<void>;
  readonly now_ms?: () => number;
}

export class ProxiedGuest {
  readonly address: string;
  readonly #options: ProxiedGuestOptions;
  readonly #known = new KnownNames();
  /** When names of the policy were looked up without being asked for. */
  readonly #learned = new Map<string, number>();
  #is_learning = false;
  readonly #connections = new Set<HeldConnection>();
  #policy: EgressPolicy;
  #entries: readonly EgressEntry[];
  #secrets: readonly GuestSecret[];
  #authority: string | null;
  #look_ups = 0;

  constructor({ address, policy, secrets, authority }: GuestPolicy, options: ProxiedGuestOptions) {
    this.address = address;
    this.#options = options;
    this.#policy = policy;
    this.#entries = activeEntries(policy);
    this.#secrets = secrets;
    this.#authority = authority;
    void this.#learnNames();
  }

  /** The fingerprint of the authority that it trusts; null: there is none. */
  get authority(): string | null {
    return this.#authority;
  }

  change({ policy, secrets, authority }: Omit<GuestPolicy, 'address'>): void {
    this.#policy = policy;
    this.#entries = activeEntries(policy);
    this.#secrets = secrets;
    this.#authority = authority;
    for (const connection of this.#connections) if (!connection.isPermitted()) connection.cut();
    void this.#learnNames();
  }

  /**
   * A guest may know addresses of its policy's names without having asked here: from a file, or from before it was resumed at this host.
   * They may change, and the kernel forgets them, so they are looked up again.
   * What fails is tried again at the next change, which comes each minute.
   */
  async #learnNames(): Promise<void> {
    if (this.#is_learning) return;
    this.#is_learning = true;
    const names = this.#entries.flatMap((entry) => (entry.kind === 'name' && !entry.below ? entry.name : []));
    for (const each of this.#learned.keys()) if (!names.includes(each)) this.#learned.delete(each);
    const now_ms = this.#options.now_ms?.() ?? performance.now();
    for (const name of names) {
      if ((this.#learned.get(name) ?? Number.NEGATIVE_INFINITY) > now_ms - LEARN_AGAIN_MS) continue;
      const found = await this.#options.resolver.lookUp(name, 4);
      if (found.outcome !== 'found' || !(await this.#admit(found.addresses))) continue;
      this.#learned.set(name, now_ms);
    }
    this.#is_learning = false;
  }

  /** False: its first packets would be refused. */
  async #admit(addresses: readonly string[]): Promise<boolean> {
    if (this.#policy.mode !== 'allow') return true;
    // Guests have no IPv6.
    return this.#options.admit(addresses.filter((each) => isIPv4(each))).then(
      () => true,
      () => false,
    );
  }

  cutAll(): void {
    for (const connection of this.#connections) connection.cut();
  }

  /** Without a port: whether it may be looked up. */
  permitsName(name: string, port: number | null): boolean {
    return this.#policy.mode === 'open' || allowsName(this.#entries, name, port);
  }

  /** Whatever its name is. */
  permitsAddress(address: string, port: number): boolean {
    return this.#policy.mode === 'open' || allowsAddress(this.#entries, address, port);
  }

  /** Those that the server of this name gets. */
  secretsFor(name: string): readonly GuestSecret[] {
    return this.#secrets.filter(({ hosts }) => coversHost(hosts, name));
  }

  isClosed(address: string): boolean {
    return this.#options.resolver.isClosed(address);
  }

  /** Holds a connection until it is released; null: the VM has too many. */
  hold(connection: HeldConnection): (() => void) | null {
    if (this.#connections.size >= CONNECTIONS_MAX) return null;
    this.#connections.add(connection);
    return () => this.#connections.delete(connection);
  }

  /** Looks a permitted name up and remembers its addresses. */
  async lookUp(name: string, family: Family): Promise<LookUp> {
    if (this.#look_ups >= LOOK_UPS_MAX) return { outcome: 'failed' };
    this.#look_ups += 1;
    try {
      const found = await this.#options.resolver.lookUp(name, family);
      if (found.outcome !== 'found') return found;
      if (!(await this.#admit(found.addresses))) return { outcome: 'failed' };
      const until_ms = performance.now() + found.ttl_seconds * 1_000 + GRACE_MS;
      this.#known.remember(name, found.addresses, until_ms);
      for (const address of found.closed) this.deny({ name, address, port: null });
      return found;
    } finally {
      this.#look_ups -= 1;
    }
  }

  /**
   * Whether the resolver gave this address for this name. It asks again when it does not know: the guest may keep an answer for
   * longer, or have it from before a restart of this process.
   */
  async nameHas(name: string, address: string): Promise<boolean> {
    if (this.#options.resolver.isClosed(address)) return false;
    if (this.#known.has(name, address, performance.now())) return true;
    const found = await this.lookUp(name, address.includes(':') ? 6 : 4);
    return found.outcome === 'found' && found.addresses.includes(address);
  }

  /**
   * Where a connection that carries secrets goes: an address that the resolver gives for the name, so that the guest cannot choose
   * another server with a certificate for it. In mode open the guest may have asked another resolver; null: there is none.
   */
  async serverAddress(name: string, wanted: string): Promise<string | null> {
    if (this.#known.has(name, wanted, performance.now())) return wanted;
    const found = await this.lookUp(name, 4);
    if (found.outcome !== 'found') return null;
    if (found.addresses.includes(wanted)) return wanted;
    return this.#policy.mode === 'open' ? (found.addresses[0] ?? null) : null;
  }

  /** A permitted name with this port and address; null: there is none. For protocols that do not tell the name. */
  async nameAt(address: string, port: number): Promise<string | null> {
    if (this.#options.resolver.isClosed(address)) return null;
    const permitted = (name: string) => this.permitsName(name, port);
    const known = this.#known.namesOf(address, performance.now()).find(permitted);
    if (known !== undefined) return known;
    const exact = this.#entries.filter(
      (entry) => entry.kind === 'name' && !entry.below && entry.port === port,
    );
    for (const entry of exact) {
      if (entry.kind === 'name' && (await this.nameHas(entry.name, address))) return entry.name;
    }
    return null;
  }

  deny(denial: Omit<Denial, 'guest'>): void {
    this.#options.denials.add({ ...denial, guest: this.address });
  }
}

/** Names, and addresses of a name. Past it the oldest is forgotten, and asked for again when it is used. */
const NAMES_MAX = 1_000;
const ADDRESSES_MAX = 100;

/** Which addresses the resolver gave for which name, for one VM, and until when. Pure; bounded. */
class KnownNames {
  readonly #until = new Map<string, Map<string, number>>();

  remember(name: string, addresses: readonly string[], until_ms: number): void {
    const known = this.#until.get(name) ?? new Map<string, number>();
    // The newest stands last.
    this.#until.delete(name);
    this.#until.set(name, known);
    for (const address of addresses) {
      known.delete(address);
      known.set(address, until_ms);
    }
    forgetOldest(known, ADDRESSES_MAX);
    forgetOldest(this.#until, NAMES_MAX);
  }

  has(name: string, address: string, now_ms: number): boolean {
    return (this.#until.get(name)?.get(address) ?? Number.NEGATIVE_INFINITY) > now_ms;
  }

  /** The names that have this address now. */
  namesOf(address: string, now_ms: number): string[] {
    return [...this.#until.keys()].filter((name) => this.has(name, address, now_ms));
  }
}

function forgetOldest(map: Map<string, unknown>, max: number): void {
  for (const key of map.keys()) {
    if (map.size <= max) return;
    map.delete(key);
  }
}
