/** Which addresses the resolver gave for which name, for one VM, and until when. Pure; bounded. */

/** Names, and addresses of a name. Past it the oldest is forgotten, and asked for again when it is used. */
const NAMES_MAX = 1_000;
const ADDRESSES_MAX = 100;

export class KnownNames {
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
