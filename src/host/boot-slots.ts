/**
 * How many guests boot at once on a host. A boot needs a whole core, so more boots at once only make each one slower. Boots
 * wait in the order of their calls. A boot that takes longer than a minute gives up its slot, so that a guest that hangs
 * blocks no other.
 */
import { availableParallelism } from 'node:os';
import { Semaphore } from '../lib/semaphore.ts';

const HELD_MS = 60_000;

export class BootSlots {
  readonly #slots: Semaphore;

  constructor(slots = Math.max(2, 2 * availableParallelism())) {
    this.#slots = new Semaphore(slots);
  }

  /** Waits for a slot. Returns the function that releases it. @throws the signal's reason */
  async take(signal: AbortSignal): Promise<() => void> {
    await this.#slots.acquire(signal);
    return this.#hold();
  }

  /** For background work: a slot only while no guest boots; null otherwise. */
  takeIdle(): (() => void) | null {
    if (!this.#slots.isIdle) return null;
    // Resolves at once: a slot is free.
    void this.#slots.acquire();
    return this.#hold();
  }

  #hold(): () => void {
    let released = false;
    const release = () => {
      clearTimeout(timer);
      if (released) return;
      released = true;
      this.#slots.release();
    };
    const timer = setTimeout(release, HELD_MS);
    timer.unref();
    return release;
  }
}
