/**
 * Look-ups that are asked for in one turn of the event loop, or while one is under way, go together in the next, so that
 * many requests at once cost the database few statements. Nothing is kept: a look-up is always begun after it was asked
 * for, so its answer is as fresh as that of a statement of its own. Equal keys are looked up once.
 */

import { endOfTurn } from './end-of-turn.ts';
import { MAX_KEYS } from './look-up-statement.ts';

export class Batched<V> {
  /**
   * By key. Bounded by the requests that are being served. A new one for each batch: one for all would become an old object,
   * and so would each table that it outgrows, with all that was ever in it (driver-query.ts).
   */
  #waiting = new Map<string, PromiseWithResolvers<V | undefined>>();
  #under_way = false;
  readonly #lookUp: (keys: readonly string[]) => Promise<ReadonlyMap<string, V>>;

  constructor(lookUp: (keys: readonly string[]) => Promise<ReadonlyMap<string, V>>) {
    this.#lookUp = lookUp;
  }

  /** What is found under `key`. @throws what the look-up throws */
  find(key: string): Promise<V | undefined> {
    const asked = this.#waiting.get(key) ?? Promise.withResolvers<V | undefined>();
    this.#waiting.set(key, asked);
    if (!this.#under_way) void this.#run();
    return asked.promise;
  }

  /** Never rejects. */
  async #run(): Promise<void> {
    this.#under_way = true;
    await endOfTurn();
    while (this.#waiting.size > 0) {
      const waiting = [...this.#waiting];
      const batch = waiting.slice(0, MAX_KEYS);
      this.#waiting = new Map(waiting.slice(MAX_KEYS));
      try {
        const found = await this.#lookUp(batch.map(([key]) => key));
        for (const [key, { resolve }] of batch) resolve(found.get(key));
      } catch (error) {
        for (const [, { reject }] of batch) reject(error);
      }
    }
    this.#under_way = false;
  }
}
