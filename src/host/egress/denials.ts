/** Gathers denied attempts, merged by destination, and passes them on a few times a second. Bounded. */
import type { CountedDenial, Denial } from './gate-messages.ts';

const GATHER_MS = 200;
/** Different destinations in that time; more are not passed on. */
const GATHERED_MAX = 2_000;

export class Denials {
  readonly #pass: (denials: readonly CountedDenial[]) => void;
  readonly #gathered = new Map<string, CountedDenial>();
  #timer: NodeJS.Timeout | null = null;

  constructor(pass: (denials: readonly CountedDenial[]) => void) {
    this.#pass = pass;
  }

  add(denial: Denial): void {
    const key = JSON.stringify([denial.guest, denial.name, denial.address, denial.port]);
    const count = (this.#gathered.get(key)?.count ?? 0) + 1;
    if (count === 1 && this.#gathered.size >= GATHERED_MAX) return;
    this.#gathered.set(key, { ...denial, at_ms: Date.now(), count });
    this.#timer ??= setTimeout(() => this.#passOn(), GATHER_MS);
  }

  #passOn(): void {
    this.#timer = null;
    const all = [...this.#gathered.values()];
    this.#gathered.clear();
    this.#pass(all);
  }
}
