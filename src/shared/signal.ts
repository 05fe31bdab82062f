/**
 * A condition variable within this process. Code that waits for shared state looks at the state, waits for a notification,
 * and looks again: a notification says only that something may have changed.
 */
export class Signal {
  readonly #listeners = new Set<() => void>();
  #count = 0;

  /** Notifications so far. Read it before a look that awaits, and give it to {@link wait}: none in between is missed. */
  get count(): number {
    return this.#count;
  }

  /** Bound, so that it can be passed as a callback and compared. */
  readonly notify = (): void => {
    this.#count += 1;
    for (const listener of [...this.#listeners]) listener();
  };

  /** Calls `listener` at each notification. Returns the unsubscribe function. */
  readonly subscribe = (listener: () => void): (() => void) => {
    const own = () => listener();
    this.#listeners.add(own);
    return () => void this.#listeners.delete(own);
  };

  /** Resolves at the first notification after the one numbered `since` (default: the last one), or when `signal` aborts. */
  wait({ since = this.#count, signal }: { since?: number; signal?: AbortSignal } = {}): Promise<void> {
    if (this.#count !== since || signal?.aborted) return Promise.resolve();
    return new Promise((resolve) => {
      const done = (): void => {
        unsubscribe();
        signal?.removeEventListener('abort', done);
        resolve();
      };
      const unsubscribe = this.subscribe(done);
      signal?.addEventListener('abort', done);
    });
  }
}
