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
