/**
 * Which addresses the first packet of a restricted VM's connection may go to, beside those of its policy: a set of the kernel with what
 * the gate's resolver gave for allowed names. Without it a connection would be accepted before the gate knows what it is for.
 *
 * The set has a table of its own, which nobody replaces: it outlives gate and agent, as what a guest knows of names does. The rules of
 * guest-rules.ts see a mark.
 *
 * Invariant: a change is one transaction, and one change runs at a time; those that come meanwhile share the next.
 */
import { isIPv4 } from 'node:net';
import { assert } from '../../lib/assert.ts';
import { pause } from '../../lib/backoff.ts';
import { type GuestNetwork, inNetwork } from '../network/guest-network.ts';
import { ADMITTED_HOURS } from './admitted-addresses.ts';

/** Of a packet to such an address. */
export const RESOLVED_MARK = 0x6266;

const TABLE = 'inet berth_names';
/** Of all VMs. */
const ELEMENTS_MAX = 1_048_576;
/** The pause after a change, as a multiple of its duration: a guest that looks up name after name costs a bounded share of the time. */
const REST = 5;

/** The input of `nft -f -` that makes the table, or leaves its set as it is. `interfaces`: those of VMs, as nft matches them. */
export function firstPacketRules(interfaces: string): string {
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

interface Change {
  readonly guest: string;
  readonly admitted: readonly string[];
  readonly dropped: readonly string[];
}

export class FirstPackets {
  readonly #network: Pick<GuestNetwork, 'path'>;
  #waiting: Change[] = [];
  #next: Promise<void> | null = null;
  #last: Promise<unknown> = Promise.resolve();

  /** `network`: the guests'. */
  constructor(network: Pick<GuestNetwork, 'path'>) {
    this.#network = network;
  }

  /** @throws why the kernel does not know */
  async change(change: Change): Promise<void> {
    // They come from a process that reads bytes of guests.
    for (const each of [change.guest, ...change.admitted, ...change.dropped])
      assert(isIPv4(each), 'a VM and what it reaches have IPv4 addresses');
    this.#waiting.push(change);
    this.#next ??= this.#afterLast();
    await this.#next;
  }

  async #afterLast(): Promise<void> {
    await this.#last;
    const changes = this.#waiting;
    this.#waiting = [];
    this.#next = null;
    const began_ms = performance.now();
    const applying = inNetwork(this.#network, ['nft', '-f', '-'], changeText(changes));
    const rest = () => pause(REST * (performance.now() - began_ms));
    this.#last = applying.then(rest, rest);
    await applying;
  }
}

function changeText(changes: readonly Change[]): string {
  const lines = changes.flatMap(({ guest, admitted, dropped }) => {
    const pairs = (addresses: readonly string[], after = '') =>
      `${TABLE} resolved { ${addresses.map((each) => `${guest} . ${each}${after}`).join(', ')} }`;
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
