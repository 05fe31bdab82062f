/**
 * Limits how many guests boot at once on a host. A boot needs a whole core, so more boots at once only make each one
 * slower. Boots wait in the order of their calls, with two exceptions:
 *
 * - A boot that takes longer than a minute gives up its slot, so that a hung guest blocks no other.
 * - An instance whose last boot held its slot for more than 15 s waits as if it had come later, by five times that
 *   time. So guests that hang again and again do not delay the others.
 */
import { availableParallelism } from 'node:os';
import { Semaphore } from '../shared/concurrency.ts';
import type { InstanceId } from '../shared/ids.ts';

const HELD_MS = 60_000;
/** A boot that held its slot for no longer is as good as any. */
const QUICK_MS = 15_000;
/** An instance waits behind those that come within so many times as long as its last boot took. */
const PENALTY = 5;
const REMEMBERED_MAX = 10_000;

export class BootSlots {
  readonly #slots: Semaphore;
  readonly #now: () => number;
  /** How long the last boot of an instance held its slot, if it was not quick. */
  readonly #held_ms = new Map<InstanceId, number>();

  /** `now`: monotonic, in ms. */
  constructor(slots = Math.max(2, 2 * availableParallelism()), now = () => performance.now()) {
    this.#slots = new Semaphore(slots);
    this.#now = now;
  }

  /** Waits for a slot. Returns the function that releases it. @throws the signal's reason */
  async take(id: InstanceId, signal: AbortSignal): Promise<() => void> {
    await this.#slots.acquire(signal, this.#now() + PENALTY * (this.#held_ms.get(id) ?? 0));
    const since_ms = this.#now();
    return this.#hold(() => this.#remember(id, this.#now() - since_ms));
  }

  #remember(id: InstanceId, held_ms: number): void {
    this.#held_ms.delete(id);
    if (held_ms > QUICK_MS) this.#held_ms.set(id, held_ms);
    for (const oldest of this.#held_ms.keys()) {
      if (this.#held_ms.size <= REMEMBERED_MAX) return;
      this.#held_ms.delete(oldest);
    }
  }

  /** For background work: a slot only while no guest boots; null otherwise. */
  takeIdle(): (() => void) | null {
    if (!this.#slots.isIdle) return null;
    // Resolves at once: a slot is free.
    void this.#slots.acquire();
    return this.#hold();
  }

  #hold(onReleased = () => {}): () => void {
    let released = false;
    const release = () => {
      clearTimeout(timer);
      if (released) return;
      released = true;
      onReleased();
      this.#slots.release();
    };
    const timer = setTimeout(release, HELD_MS);
    timer.unref();
    return release;
  }
}
