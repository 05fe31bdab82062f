/**
 * Maintains an nftables set of pairs (VM, destination address): the addresses that the egress proxy has resolved for
 * names that the VM's policy allows. A rule here marks new connections to them. For a restricted VM, policy-rules.ts
 * sends marked connections to the proxy, and refuses others at the first packet, unless the policy allows their
 * network. Without the set, the proxy would accept a connection before it judges it.
 *
 * The set has its own nftables table, which restarts of agent and proxy do not empty, because guests also keep the
 * addresses that they have looked up. An entry expires after 48 h.
 *
 * Invariants: one nft transaction at a time, with the changes of all guests. A guest has at most ADDRESSES_MAX
 * addresses (the oldest is dropped), a share of each transaction, and a pause between two, so one that looks up names
 * without end delays no other. If a transaction fails, each guest's change is tried alone. When a guest leaves, its
 * entries are deleted.
 */
import { isIPv4 } from 'node:net';
import { ADMIT_MS } from '../../protocol/egress-proxy-messages.ts';
import { assert } from '../../shared/assert.ts';

/** Of a packet to such an address. */
export const RESOLVED_MARK = 0x6266;

const TABLE = 'inet berth_names';
/** Of one VM; the proxy asks for each answer to a look-up. */
const ADDRESSES_MAX = 1_024;
/** Of all VMs: of 1,024 with as many as one may have. */
const ELEMENTS_MAX = 1_048_576;
/** The kernel forgets an address after this. */
const ADMITTED_HOURS = 48;
const ADMITTED_MS = ADMITTED_HOURS * 3_600_000;
const AGAIN_AFTER_MS = ADMITTED_MS / 2;
/** Of one VM: about so many addresses in a transaction, the pause between two of them, and the answers that wait. */
const ADDRESSES_A_CHANGE = 100;
const REST_MS = 50;
const WAITING_MAX = 64;
const LIST = ['-j', 'list', 'set', ...TABLE.split(' '), 'resolved'];

/** The input of `nft -f -` that makes the table, or leaves its set as it is. `interfaces`: those of VMs, as nft matches them. */
export function resolvedAddressRules(interfaces: string): string {
  return [
    ...tableWithSet(),
    `table ${TABLE} { chain marked { type filter hook prerouting priority mangle - 5; policy accept; }; }`,
    `flush chain ${TABLE} marked`,
    `add rule ${TABLE} marked iifname "${interfaces}" ct state new ip saddr . ip daddr @resolved meta mark set ${RESOLVED_MARK}`,
    '',
  ].join('\n');
}

function tableWithSet(): string[] {
  return [
    `table ${TABLE} { set resolved { type ipv4_addr . ipv4_addr; size ${ELEMENTS_MAX}; flags timeout; }; }`,
  ];
}

/** Runs `nft` with these arguments and this input, where the guests' packets are. */
export type Nft = (args: readonly string[], input: string) => Promise<string>;

interface Asked {
  readonly addresses: readonly string[];
  readonly until_ms: number;
  readonly settle: (error: Error | null) => void;
}

interface Guest {
  readonly address: string;
  /** When the kernel got each, oldest first. */
  readonly admitted: Map<string, number>;
  waiting: Asked[];
  is_resting: boolean;
  has_left: boolean;
}

/** Of one guest, in a transaction. */
interface Change {
  readonly guest: Guest;
  readonly asked: readonly Asked[];
  readonly admitted: readonly string[];
  readonly dropped: readonly string[];
}

export class ResolvedAddresses {
  readonly #nft: Nft;
  readonly #now_ms: () => number;
  readonly #guests = new Map<string, Guest>();
  #is_running = false;
  #loading: Promise<void> | null = null;

  constructor(nft: Nft, now_ms: () => number = () => performance.now()) {
    this.#nft = nft;
    this.#now_ms = now_ms;
  }

  /** Resolves when the guest's first packets pass to all of them. @throws why they do not */
  admit(address: string, addresses: readonly string[]): Promise<void> {
    // They come from a process that reads bytes of guests.
    for (const each of [address, ...addresses])
      assert(isIPv4(each), 'a VM and what it reaches have IPv4 addresses');
    const guest = this.#guestAt(address);
    if (this.#due(guest, addresses).length === 0) return Promise.resolve();
    if (guest.waiting.length >= WAITING_MAX)
      return Promise.reject(new Error(`the VM ${address} looks up more names than the kernel takes`));
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const settle = (error: Error | null) => (error ? reject(error) : resolve());
    guest.waiting.push({ addresses, until_ms: this.#now_ms() + ADMIT_MS, settle });
    void this.#run();
    return promise;
  }

  /** These guests are there. What the others were admitted to is deleted: another guest may get the address. */
  keepOnly(guests: ReadonlySet<string>): void {
    this.#loading ??= this.#load();
    void this.#loading.then(() => {
      for (const guest of this.#guests.values()) guest.has_left = !guests.has(guest.address);
      return this.#run();
    });
  }

  #guestAt(address: string): Guest {
    const known = this.#guests.get(address);
    if (known) return known;
    const guest = { address, admitted: new Map(), waiting: [], is_resting: false, has_left: false };
    this.#guests.set(address, guest);
    return guest;
  }

  #due({ admitted }: Guest, addresses: Iterable<string>): string[] {
    const since_ms = this.#now_ms() - AGAIN_AFTER_MS;
    return [...new Set(addresses)].filter(
      (each) => (admitted.get(each) ?? Number.NEGATIVE_INFINITY) <= since_ms,
    );
  }

  async #run(): Promise<void> {
    if (this.#is_running) return;
    this.#is_running = true;
    this.#loading ??= this.#load();
    await this.#loading;
    for (;;) {
      const changes = [...this.#guests.values()].flatMap((each) => this.#nextOf(each) ?? []);
      if (changes.length === 0) break;
      await this.#apply(changes);
    }
    this.#is_running = false;
  }

  /** What the kernel has of earlier agents. If it cannot be read, it is forgotten. */
  async #load(): Promise<void> {
    try {
      await this.#nft(['-f', '-'], `${tableWithSet().join('\n')}\n`);
      for (const { guest, address, left_s } of elementsIn(await this.#nft(LIST, ''))) {
        const admitted_ms = this.#now_ms() + left_s * 1_000 - ADMITTED_MS;
        this.#guestAt(guest).admitted.set(address, admitted_ms);
      }
    } catch {
      await this.#nft(['-f', '-'], `flush set ${TABLE} resolved\n`).catch(() => undefined);
    }
  }

  #nextOf(guest: Guest): Change | null {
    if (guest.has_left && guest.admitted.size > 0)
      return { guest, asked: [], admitted: [], dropped: [...guest.admitted.keys()] };
    if (guest.is_resting || guest.waiting.length === 0) return null;
    const asked: Asked[] = [];
    const wanted = new Set<string>();
    while (guest.waiting[0] && (asked.length === 0 || wanted.size < ADDRESSES_A_CHANGE)) {
      const next = guest.waiting.shift();
      if (!next) break;
      if (next.until_ms < this.#now_ms()) {
        next.settle(new Error('the kernel was too busy'));
        continue;
      }
      asked.push(next);
      for (const each of next.addresses) wanted.add(each);
    }
    if (asked.length === 0) return null;
    const admitted = this.#due(guest, wanted);
    const others = [...guest.admitted.keys()].filter((each) => !wanted.has(each));
    const dropped = others.slice(0, Math.max(0, others.length + wanted.size - ADDRESSES_MAX));
    return { guest, asked, admitted, dropped };
  }

  async #apply(changes: readonly Change[]): Promise<void> {
    try {
      await this.#nft(['-f', '-'], changeText(changes));
    } catch (error) {
      // One guest's change must not fail those of others.
      if (changes.length > 1) {
        for (const each of changes) await this.#apply([each]);
        return;
      }
      for (const { guest, asked } of changes) {
        guest.has_left = false;
        for (const each of asked) each.settle(error instanceof Error ? error : new Error(String(error)));
        this.#rest(guest);
      }
      return;
    }
    for (const { guest, asked, admitted, dropped } of changes) {
      for (const each of [...dropped, ...admitted]) guest.admitted.delete(each);
      for (const each of admitted) guest.admitted.set(each, this.#now_ms());
      for (const each of asked) each.settle(null);
      if (guest.has_left && guest.admitted.size + guest.waiting.length === 0)
        this.#guests.delete(guest.address);
      else this.#rest(guest);
    }
  }

  #rest(guest: Guest): void {
    guest.is_resting = true;
    setTimeout(() => {
      guest.is_resting = false;
      void this.#run();
    }, REST_MS).unref();
  }
}

function* elementsIn(listed: string) {
  for (const { set } of JSON.parse(listed).nftables) {
    for (const { elem } of set?.elem ?? []) {
      const [guest, address] = elem.val.concat;
      yield { guest: String(guest), address: String(address), left_s: Number(elem.expires) };
    }
  }
}

function changeText(changes: readonly Change[]): string {
  const lines = changes.flatMap(({ guest, admitted, dropped }) => {
    const pairs = (addresses: readonly string[], after = '') =>
      `${TABLE} resolved { ${addresses.map((each) => `${guest.address} . ${each}${after}`).join(', ')} }`;
    const timeout = ` timeout ${ADMITTED_HOURS}h`;
    const all = [...dropped, ...admitted];
    // One that is there would keep its old timeout, and one that is not there cannot be deleted.
    return [
      ...(all.length === 0 ? [] : [`add element ${pairs(all)}`, `delete element ${pairs(all)}`]),
      ...(admitted.length === 0 ? [] : [`add element ${pairs(admitted, timeout)}`]),
    ];
  });
  return `${[...tableWithSet(), ...lines].join('\n')}\n`;
}
