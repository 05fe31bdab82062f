import { Semaphore } from './concurrency.ts';

/** Work of many parties: at most so many of one party's at a time. The others of that party wait, in the order of their calls. */
export class Turns<Party> {
  readonly #each: number;
  readonly #parties = new Map<Party, { readonly semaphore: Semaphore; calls: number }>();

  /** `each`: how many of one party's work at a time. */
  constructor(each: number) {
    this.#each = each;
  }

  async take<T>(party: Party, work: () => Promise<T>): Promise<T> {
    const known = this.#parties.get(party) ?? { semaphore: new Semaphore(this.#each), calls: 0 };
    this.#parties.set(party, known);
    known.calls += 1;
    try {
      await known.semaphore.acquire();
      try {
        return await work();
      } finally {
        known.semaphore.release();
      }
    } finally {
      known.calls -= 1;
      if (known.calls === 0) this.#parties.delete(party);
    }
  }
}
