/**
 * Cuts a byte stream into lines ending in LF, for QMP and the guest agent alike; one at a time, as they are taken.
 * Invariant: a line over the bound is refused before anybody has it, whether or not its LF ever comes; so no more is held than
 * one line, and one read behind it.
 */
const LF = 0x0a;
const NOTHING = Buffer.alloc(0);

export class LineTooLongError extends Error {
  override name = 'LineTooLongError';
}

export class LineSplitter {
  readonly #max_line_bytes: number;
  #held: Buffer = NOTHING;
  /** So many bytes of it hold no LF. */
  #searched = 0;

  constructor(max_line_bytes: number) {
    this.#max_line_bytes = max_line_bytes;
  }

  push(chunk: Buffer): void {
    this.#held = this.#held.length === 0 ? chunk : Buffer.concat([this.#held, chunk]);
  }

  /** The next whole line without its LF; null: its end has not come. Throws {@link LineTooLongError} past the bound. */
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

  /** Bytes that were pushed and not taken. */
  get held_bytes(): number {
    return this.#held.length;
  }

  /** Forgets what is held. */
  reset(): void {
    this.#hold(NOTHING);
  }

  #hold(rest: Buffer): void {
    // A view of nothing would keep the memory behind it.
    this.#held = rest.length === 0 ? NOTHING : rest;
    this.#searched = 0;
  }
}
