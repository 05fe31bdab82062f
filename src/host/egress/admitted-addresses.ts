/**
 * The gate's side of {@link FirstPackets}: the addresses that one VM's first packets may go to, because the resolver gave them for an
 * allowed name. It asks the agent to admit an address before the guest learns of it, and again while it is in use. Bounded: the address
 * that was admitted first is dropped.
 */
import { isIPv4 } from 'node:net';

/** The kernel forgets an address after this. */
export const ADMITTED_HOURS = 48;
const AGAIN_AFTER_MS = (ADMITTED_HOURS / 2) * 3_600_000;
const ADDRESSES_MAX = 4_096;

/** Resolves when the kernel knows. @throws when it does not */
export type Admit = (admitted: readonly string[], dropped: readonly string[]) => Promise<void>;

export class AdmittedAddresses {
  readonly #admit: Admit;
  /** When each was admitted, oldest first. */
  readonly #admitted = new Map<string, number>();

  constructor(admit: Admit) {
    this.#admit = admit;
  }

  /** Guests have no IPv6. @throws when the kernel does not know */
  async add(addresses: readonly string[]): Promise<void> {
    const now_ms = performance.now();
    const since_ms = now_ms - AGAIN_AFTER_MS;
    const wanted = addresses.filter(
      (each) => isIPv4(each) && (this.#admitted.get(each) ?? Number.NEGATIVE_INFINITY) <= since_ms,
    );
    if (wanted.length === 0) return;
    const others = [...this.#admitted.keys()].filter((each) => !wanted.includes(each));
    const dropped = others.slice(0, Math.max(0, others.length + wanted.length - ADDRESSES_MAX));
    await this.#admit(wanted, dropped);
    for (const each of [...dropped, ...wanted]) this.#admitted.delete(each);
    for (const each of wanted) this.#admitted.set(each, now_ms);
  }
}
