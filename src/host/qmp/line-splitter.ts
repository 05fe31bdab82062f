/**
 * Cuts a byte stream into lines ending in LF, for QMP and the guest agent alike.
 * Invariant: never holds more than `max_line_bytes` of an unfinished line; the peer (a guest, in the agent's
 * case) is not trusted to ever send the LF.
 */
const LF = 0x0a;

export class LineTooLongError extends Error {
  override name = 'LineTooLongError';
}

export class LineSplitter {
  readonly #max_line_bytes: number;
  #parts: Buffer[] = [];
  #held_bytes = 0;

  constructor(max_line_bytes: number) {
    this.#max_line_bytes = max_line_bytes;
  }

  /** The lines that `chunk` completes, without their LF. Throws {@link LineTooLongError} past the bound. */
  push(chunk: Buffer): Buffer[] {
    const lines: Buffer[] = [];
    let start = 0;
    for (let end = chunk.indexOf(LF); end !== -1; end = chunk.indexOf(LF, start)) {
      this.#hold(chunk.subarray(start, end));
      lines.push(this.#parts.length === 1 && this.#parts[0] ? this.#parts[0] : Buffer.concat(this.#parts));
      this.reset();
      start = end + 1;
    }
    this.#hold(chunk.subarray(start));
    return lines;
  }

  /** Forgets the unfinished line. */
  reset(): void {
    this.#parts = [];
    this.#held_bytes = 0;
  }

  #hold(part: Buffer): void {
    this.#held_bytes += part.length;
    if (this.#held_bytes > this.#max_line_bytes) {
      this.reset();
      throw new LineTooLongError(`a line is longer than ${this.#max_line_bytes} bytes`);
    }
    if (part.length > 0) this.#parts.push(part);
  }
}
