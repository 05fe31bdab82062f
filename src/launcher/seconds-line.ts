/** Shows the elapsed seconds on a terminal while a child program prints nothing. Its next line replaces them. */
import type { Writable } from 'node:stream';

const TICK_MS = 1_000;
const ERASE = '\r\u001b[2K';

export class SecondsLine {
  readonly #out: Writable;
  readonly #timer: NodeJS.Timeout;
  readonly #began_ms = performance.now();

  constructor(out: Writable) {
    this.#out = out;
    this.#timer = setInterval(() => this.#draw(), TICK_MS);
  }

  say(line: string): void {
    this.#out.write(`${ERASE}${line}\n`);
  }

  end(): void {
    clearInterval(this.#timer);
    this.#out.write(ERASE);
  }

  #draw(): void {
    this.#out.write(`${ERASE}… ${Math.round((performance.now() - this.#began_ms) / 1_000)} s`);
  }
}
