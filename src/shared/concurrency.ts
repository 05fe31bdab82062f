/**
 * Tools for concurrent work in one process: a semaphore, a condition variable ({@link Signal}), and loops over many
 * items that run in parallel or yield to other work.
 */
import { setImmediate as turn } from 'node:timers/promises';

/** A counting semaphore: at most `permits` holders at once, the others wait in the order of their ranks, and then of their calls. */
export class Semaphore {
  readonly #permits: number;
  readonly #waiting: { readonly rank: number; readonly enter: () => void }[] = [];
  #held = 0;

  constructor(permits: number) {
    this.#permits = permits;
  }

  get isIdle(): boolean {
    return this.#held === 0;
  }

  /** Takes a permit; its holder calls {@link release} once. @throws the signal's reason, without a permit */
  async acquire(signal?: AbortSignal, rank = 0): Promise<void> {
    signal?.throwIfAborted();
    if (this.#held < this.#permits) {
      this.#held += 1;
      return;
    }
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const waiting = { rank, enter: resolve };
    const leave = (): void => {
      const at = this.#waiting.indexOf(waiting);
      if (at < 0) return;
      this.#waiting.splice(at, 1);
      reject(signal?.reason);
    };
    const behind = this.#waiting.findLastIndex((each) => each.rank <= rank);
    this.#waiting.splice(behind + 1, 0, waiting);
    signal?.addEventListener('abort', leave, { once: true });
    await promise.finally(() => signal?.removeEventListener('abort', leave));
  }

  /** Passes the permit to the first that waits. */
  release(): void {
    const next = this.#waiting.shift();
    if (next) next.enter();
    else this.#held -= 1;
  }
}

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

/**
 * Calls `work` for each item, at most `at_once` at a time. After a failure no further item begins, and it is thrown once all running
 * work has ended.
 */
export async function inParallel<T>(
  items: Iterable<T>,
  at_once: number,
  work: (item: T) => Promise<void>,
): Promise<void> {
  const iterator = items[Symbol.iterator]();
  let failed = false;
  const worker = async (): Promise<void> => {
    for (let next = iterator.next(); !next.done && !failed; next = iterator.next()) {
      try {
        await work(next.value);
      } catch (error) {
        failed = true;
        throw error;
      }
    }
  };
  const ended = await Promise.allSettled(Array.from({ length: at_once }, () => worker()));
  for (const each of ended) if (each.status === 'rejected') throw each.reason;
}

const SLICE_MS = 10;
/** Between two readings of the clock. */
const ITEMS = 64;

/**
 * Calls `work` for each item, and yields to other work about every 10 ms. A source that searches yields undefined between its finds,
 * so that a long search is interrupted too.
 */
export async function inSlices<T>(items: Iterable<T | undefined>, work: (item: T) => void): Promise<void> {
  let until_ms = performance.now() + SLICE_MS;
  let count = 0;
  for (const item of items) {
    if (item !== undefined) work(item);
    count += 1;
    if (count % ITEMS !== 0 || performance.now() < until_ms) continue;
    await turn();
    until_ms = performance.now() + SLICE_MS;
  }
}
