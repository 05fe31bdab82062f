/**
 * A limit on bytes held at once, granted in the order of requests. A request above the limit is granted when nothing else
 * is held, so none waits for ever.
 */
import { assert } from '../../shared/assert.ts';

interface Waiter {
  readonly bytes: number;
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

export class ByteBudget {
  readonly limit_bytes: number;
  #used = 0;
  #failure: { readonly cause: unknown } | undefined;
  readonly #waiters: Waiter[] = [];

  constructor(limit_bytes: number) {
    assert(limit_bytes > 0, 'a budget has room');
    this.limit_bytes = limit_bytes;
  }

  get used_bytes(): number {
    return this.#used;
  }

  get waiting(): boolean {
    return this.#waiters.length > 0;
  }

  /** Takes `bytes` and returns true, unless there is no space or another caller waits. */
  tryTake(bytes: number): boolean {
    if (this.#failure || this.#waiters.length > 0 || !this.#fits(bytes)) return false;
    this.#used += bytes;
    return true;
  }

  /** Waits for space for `bytes`. Rejects with the cause given to {@link fail}. */
  take(bytes: number): Promise<void> {
    if (this.#failure) return Promise.reject(this.#failure.cause);
    if (this.tryTake(bytes)) return Promise.resolve();
    return new Promise((resolve, reject) => this.#waiters.push({ bytes, resolve, reject }));
  }

  give(bytes: number): void {
    this.#used -= bytes;
    assert(this.#used >= 0, 'no more bytes are returned than were taken');
    for (let first = this.#waiters[0]; first && this.#fits(first.bytes); first = this.#waiters[0]) {
      this.#waiters.shift();
      this.#used += first.bytes;
      first.resolve();
    }
  }

  /** Rejects all waiting and later calls. */
  fail(cause: unknown): void {
    this.#failure ??= { cause };
    for (const waiter of this.#waiters.splice(0)) waiter.reject(cause);
  }

  #fits(bytes: number): boolean {
    return this.#used === 0 || this.#used + bytes <= this.limit_bytes;
  }
}
