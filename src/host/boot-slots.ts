/**
 * How many guests boot at a time on a host: each boot wants a whole core, so more of them at once only make each take
 * longer, and the last too long. Who waits is next in the order of asking; who boots for too long (it hangs, perhaps)
 * holds up nobody else.
 */
import { availableParallelism } from 'node:os';

const HELD_MS = 60_000;

export class BootSlots {
  readonly #waiting: (() => void)[] = [];
  readonly #slots: number;
  #free: number;

  constructor(slots = Math.max(2, 2 * availableParallelism())) {
    this.#slots = slots;
    this.#free = slots;
  }

  /** Resolves when it may boot, with what ends its turn. @throws the signal's reason */
  async take(signal: AbortSignal): Promise<() => void> {
    signal.throwIfAborted();
    if (this.#free > 0) this.#free -= 1;
    else await this.#turn(signal);
    return this.#begin();
  }

  /** For what nobody waits for: only while no guest boots. null: not now. */
  takeIdle(): (() => void) | null {
    if (this.#free < this.#slots) return null;
    this.#free -= 1;
    return this.#begin();
  }

  #begin(): () => void {
    const timer = setTimeout(() => release(), HELD_MS);
    timer.unref();
    const release = () => {
      clearTimeout(timer);
      if (released) return;
      released = true;
      const next = this.#waiting.shift();
      if (next) next();
      else this.#free += 1;
    };
    let released = false;
    return release;
  }

  #turn(signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const given = () => {
        signal.removeEventListener('abort', left);
        resolve();
      };
      const left = () => {
        this.#waiting.splice(this.#waiting.indexOf(given), 1);
        reject(signal.reason);
      };
      this.#waiting.push(given);
      signal.addEventListener('abort', left, { once: true });
    });
  }
}
