/**
 * Splits a byte stream into lines ending in LF, for QMP and the guest agent. Invariant: a line over the limit is refused
 * even before its LF arrives, so at most one line and one read after it are in memory.
 */
const LF = 0x0a;
const NOTHING = Buffer.alloc(0);

export class LineTooLongError extends Error {
  override name = 'LineTooLongError';
}

export class LineSplitter {
  readonly #max_line_bytes: number;
  #held: Buffer = NOTHING;
  /** The first bytes of `#held` that are known to have no LF. */
  #searched = 0;

  constructor(max_line_bytes: number) {
    this.#max_line_bytes = max_line_bytes;
  }

  push(chunk: Buffer): void {
    this.#held = this.#held.length === 0 ? chunk : Buffer.concat([this.#held, chunk]);
  }

  /** The next line without its LF; null: it is incomplete. @throws LineTooLongError */
  next(): Buffer | null {
    const end = this.#held.indexOf(LF, this.#searched);
    const length = end === -1 ? this.#held.length : end;
    if (length > this.#max_line_bytes) {
      this.reset();
      throw new LineTooLongError(`a line is longer than ${this.#max_line_bytes} bytes`);
    }
    if (end === -1) {
      this.#searched = length;
      return null;
    }
    const line = this.#held.subarray(0, end);
    this.#hold(this.#held.subarray(end + 1));
    return line;
  }

  /** Bytes that were pushed and not yet returned. */
  get held_bytes(): number {
    return this.#held.length;
  }

  /** Drops the held bytes. */
  reset(): void {
    this.#hold(NOTHING);
  }

  #hold(rest: Buffer): void {
    // An empty view would keep its whole buffer alive.
    this.#held = rest.length === 0 ? NOTHING : rest;
    this.#searched = 0;
  }
}
