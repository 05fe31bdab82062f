/**
 * Spreads the requests of one instance over turns of the event loop. A turn serves everything that is ready, so the requests of an
 * instance with many busy clients would make it long, and each request of another instance takes several turns. With few beginnings
 * in a turn there are few answers in one, and so few next requests.
 */
const BEGINNINGS_OF_A_TURN = 8;

export class Turns {
  /** In this turn, by instance. */
  readonly #begun = new Map<string, number>();
  readonly #waiting = new Map<string, (() => void)[]>();
  #scheduled = false;

  /** Resolves when a request of the instance may begin; null: now. */
  await(instance: string): Promise<void> | null {
    this.#schedule();
    const begun = this.#begun.get(instance) ?? 0;
    const waiting = this.#waiting.get(instance);
    if (begun < BEGINNINGS_OF_A_TURN && !waiting) {
      this.#begun.set(instance, begun + 1);
      return null;
    }
    const { promise, resolve } = Promise.withResolvers<void>();
    if (waiting) waiting.push(resolve);
    else this.#waiting.set(instance, [resolve]);
    return promise;
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => this.#next());
  }

  #next(): void {
    this.#scheduled = false;
    this.#begun.clear();
    for (const [instance, waiting] of this.#waiting) {
      const next = waiting.splice(0, BEGINNINGS_OF_A_TURN);
      if (waiting.length === 0) this.#waiting.delete(instance);
      this.#begun.set(instance, next.length);
      for (const begin of next) begin();
    }
    if (this.#begun.size > 0) this.#schedule();
  }
}
