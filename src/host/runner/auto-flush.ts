/** When the automatic flush is due: its interval is over and something is dirty. */
export class AutoFlush {
  readonly #due: () => void;
  #interval_s: number | null = null;
  #timer: NodeJS.Timeout | undefined;
  #elapsed = false;
  #dirty = false;

  /** `due` is called when {@link due} becomes true. */
  constructor(due: () => void) {
    this.#due = due;
  }

  get due(): boolean {
    return this.#elapsed && this.#dirty;
  }

  /** null turns it off. */
  configure(interval_s: number | null): void {
    if (interval_s === this.#interval_s) return;
    this.#interval_s = interval_s;
    this.#restart();
  }

  /** A flush, automatic or not, begins now. */
  began(): void {
    this.#dirty = false;
    this.#restart();
  }

  /** What the bitmap says; null is unknown. */
  observe(dirty_bytes: number | null): void {
    const was = this.due;
    this.#dirty = dirty_bytes === null ? this.#dirty : dirty_bytes > 0;
    if (this.due && !was) this.#due();
  }

  close(): void {
    clearTimeout(this.#timer);
  }

  #restart(): void {
    clearTimeout(this.#timer);
    this.#elapsed = false;
    if (this.#interval_s === null) return;
    this.#timer = setTimeout(() => {
      this.#elapsed = true;
      if (this.#dirty) this.#due();
    }, this.#interval_s * 1000);
  }
}
