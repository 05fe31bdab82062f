/**
 * The line discipline of a simulated terminal. It echoes what a person types, and passes the input to the program line
 * by line. Backspace removes a character, Ctrl-C interrupts, and Ctrl-D at the beginning of a line ends the input.
 */
import type { Input } from './shell.ts';

const [CTRL_C, CTRL_D, BACKSPACE, DELETE, LINE_FEED, RETURN] = ['\x03', '\x04', '\b', '\x7f', '\n', '\r'];

export class Terminal {
  readonly #input: Input;
  readonly #show: (text: Buffer) => void;
  readonly #interrupt: () => void;
  #line = '';

  constructor(input: Input, show: (text: Buffer) => void, interrupt: () => void) {
    this.#input = input;
    this.#show = show;
    this.#interrupt = interrupt;
  }

  /** Output of the program, as a terminal shows it. */
  print(data: Buffer | string): void {
    this.#show(Buffer.from(Buffer.from(data).toString('latin1').replace(/\r?\n/g, '\r\n'), 'latin1'));
  }

  type(data: Buffer): void {
    // Shown at once, as it was typed.
    let shown = '';
    for (const character of data.toString('latin1')) {
      if (character === RETURN || character === LINE_FEED) {
        shown += '\n';
        this.#input.push(Buffer.from(`${this.#line}\n`, 'latin1'));
        this.#line = '';
      } else if (character === BACKSPACE || character === DELETE) {
        if (this.#line !== '') shown += '\b \b';
        this.#line = this.#line.slice(0, -1);
      } else if (character === CTRL_C) {
        shown += '^C\n';
        this.#line = '';
        this.#interrupt();
      } else if (character === CTRL_D) {
        if (this.#line === '') this.#input.end();
      } else {
        this.#line += character;
        shown += character;
      }
    }
    this.print(Buffer.from(shown, 'latin1'));
  }
}
