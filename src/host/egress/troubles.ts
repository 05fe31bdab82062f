/** Tells which servers of secrets could not be trusted or reached: each once in a while, so that no VM fills the log. Bounded. */
import type { FromGate } from './gate-messages.ts';

const AGAIN_MS = 60_000;
/** In that time. */
const TOLD_MAX = 100;

export class Troubles {
  readonly #tell: (message: FromGate) => void;
  readonly #told = new Set<string>();
  #since_ms = Number.NEGATIVE_INFINITY;

  constructor(tell: (message: FromGate) => void) {
    this.#tell = tell;
  }

  add(guest: string, name: string, reason: string): void {
    if (performance.now() - this.#since_ms > AGAIN_MS) {
      this.#since_ms = performance.now();
      this.#told.clear();
    }
    const key = JSON.stringify([guest, name, reason]);
    if (this.#told.has(key) || this.#told.size >= TOLD_MAX) return;
    this.#told.add(key);
    this.#tell({ type: 'trouble', guest, name, reason });
  }
}
