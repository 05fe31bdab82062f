/** Places that are held for as long as something goes on: so many for each holder, and so many in all. */
import { AppError } from '../lib/errors.ts';

const RETRY_S = 15;

export interface PlacesOptions {
  /** In the plural, for those who get none. */
  readonly what: string;
  readonly per_holder: number;
  readonly in_all: number;
}

export class Places {
  readonly #options: PlacesOptions;
  readonly #held = new Map<string, number>();
  #count = 0;

  constructor(options: PlacesOptions) {
    this.#options = options;
  }

  /** Takes a place; what it answers gives it back, and is called once. @throws AppError RATE_LIMITED, UNAVAILABLE */
  take(holder: string): () => void {
    const { what, per_holder, in_all } = this.#options;
    const own = this.#held.get(holder) ?? 0;
    if (own >= per_holder) {
      throw new AppError('RATE_LIMITED', {
        message: `At most ${per_holder} ${what} at once. Close one first.`,
        retry_after_seconds: RETRY_S,
      });
    }
    if (this.#count >= in_all) {
      throw new AppError('UNAVAILABLE', {
        message: `Too many ${what} are open.`,
        retry_after_seconds: RETRY_S,
      });
    }
    this.#held.set(holder, own + 1);
    this.#count += 1;
    return () => {
      const left = (this.#held.get(holder) ?? 1) - 1;
      if (left === 0) this.#held.delete(holder);
      else this.#held.set(holder, left);
      this.#count -= 1;
    };
  }
}
