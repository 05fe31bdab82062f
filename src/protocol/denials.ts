/**
 * Collects the destinations that VMs were denied, and passes them on in batches a few times a second. Attempts at the
 * same destination are counted as one entry, and the number of entries per VM is bounded.
 */
import type { CountedDenial, Denial } from './egress-proxy-messages.ts';

const GATHER_MS = 200;
/**
 * The destinations of one VM that are passed on within REPORTED_MS; the database keeps as many of an instance. A VM that scans
 * addresses must neither hide another's attempts nor keep the database busy.
 */
const REPORTED_MAX = 100;
const REPORTED_MS = 5_000;

export class Denials {
  readonly #pass: (denials: readonly CountedDenial[]) => void;
  readonly #gathered = new Map<string, CountedDenial>();
  #timer: NodeJS.Timeout | null = null;
  /** By VM. */
  readonly #reported = new Map<string, number>();
  #reported_since_ms = 0;

  constructor(pass: (denials: readonly CountedDenial[]) => void) {
    this.#pass = pass;
  }

  add(denial: Denial): void {
    const key = JSON.stringify([denial.guest, denial.name, denial.address, denial.port]);
    const count = (this.#gathered.get(key)?.count ?? 0) + 1;
    if (count === 1 && !this.#mayReport(denial.guest)) return;
    this.#gathered.set(key, { ...denial, at_ms: Date.now(), count });
    this.#timer ??= setTimeout(() => this.#passOn(), GATHER_MS);
  }

  #mayReport(guest: string): boolean {
    const now_ms = performance.now();
    if (now_ms - this.#reported_since_ms >= REPORTED_MS) {
      this.#reported_since_ms = now_ms;
      this.#reported.clear();
    }
    const reported = (this.#reported.get(guest) ?? 0) + 1;
    this.#reported.set(guest, reported);
    return reported <= REPORTED_MAX;
  }

  #passOn(): void {
    this.#timer = null;
    const all = [...this.#gathered.values()];
    this.#gathered.clear();
    this.#pass(all);
  }
}
