/** A process that is started again when it ends, as systemd does. */
import type { ChildProcess } from 'node:child_process';

const RESTART_MS = 1_000;

export class KeptProcess {
  readonly #start: () => ChildProcess;
  #wanted = false;
  #child: ChildProcess | undefined;

  constructor(start: () => ChildProcess) {
    this.#start = start;
  }

  start(): void {
    this.#wanted = true;
    if (this.#child) return;
    const child = this.#start();
    this.#child = child;
    child.once('exit', () => {
      this.#child = undefined;
      setTimeout(() => {
        if (this.#wanted) this.start();
      }, RESTART_MS).unref();
    });
  }

  /** It is not started again. The caller ends its processes, or they have ended. */
  hold(): void {
    this.#wanted = false;
  }
}
