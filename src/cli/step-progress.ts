/** Shows the steps of a long server command: a bar on a terminal, else a line on stderr for each step. */
import { bar } from './table.ts';
import type { Terminal } from './terminal.ts';

export class StepProgress {
  readonly #terminal: Terminal;
  readonly #subject: string;
  readonly #steps: number;
  readonly #line: ReturnType<Terminal['progress']>;
  #now = 0;

  constructor(terminal: Terminal, subject: string, steps: number) {
    this.#terminal = terminal;
    this.#subject = subject;
    this.#steps = steps;
    this.#line = terminal.progress(subject);
  }

  /** @param step from 1 @param part the done part of it, from 0 to 1 */
  at(step: number, what: string, part = 0): void {
    const place = `${step}/${this.#steps}`;
    const shown = bar((step - 1 + part) / this.#steps);
    if (this.#line.shown) this.#line.say(`${this.#subject} ${shown} ${place} ${what}`);
    else if (step > this.#now) this.#terminal.warn(`${this.#subject}: step ${place} ${what}`);
    this.#now = Math.max(step, this.#now);
  }

  end(): void {
    this.#line.end();
  }
}
