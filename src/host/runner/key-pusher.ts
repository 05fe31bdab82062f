/**
 * Keeps the guest's authorized keys as the control plane last said, as soon as the guest lets it: while its file
 * systems are frozen the agent refuses, and the push is tried again.
 */
import { backoffMs, pause } from '../../lib/backoff.ts';
import { messageOf } from '../../lib/errors.ts';
import type { Log } from '../../lib/log.ts';
import type { GuestAgent } from '../guest/guest-agent.ts';
import type { Machine } from './machine.ts';
import { pushKeys } from './personalise.ts';

export class KeyPusher {
  readonly #log: Log;
  #wanted: readonly string[] = [];
  #pushed: string | null = null;
  #machine: Machine | null = null;
  #working = false;

  constructor(log: Log) {
    this.#log = log;
  }

  want(lines: readonly string[]): void {
    this.#wanted = lines;
    void this.#work();
  }

  /** Pushes now, whatever was pushed before: the guest has just booted and has none. */
  async push(agent: GuestAgent): Promise<void> {
    const lines = this.#wanted;
    await pushKeys(agent, lines);
    this.#pushed = lines.join('\n');
  }

  /** Pushes changes into this machine from now on; null into none. */
  follow(machine: Machine | null): void {
    this.#machine = machine;
    void this.#work();
  }

  async #work(): Promise<void> {
    if (this.#working) return;
    this.#working = true;
    try {
      for (let attempt = 0; this.#isBehind(); attempt++) {
        const machine = this.#machine;
        if (!machine) return;
        try {
          await this.push(machine.agent);
          this.#log.info({ keys: this.#wanted.length }, 'keys pushed');
          attempt = 0;
        } catch (error) {
          if (attempt === 2) this.#log.warn({ reason: messageOf(error) }, 'keys could not be pushed yet');
          await pause(backoffMs(attempt, 50, 1_000));
        }
      }
    } finally {
      this.#working = false;
    }
  }

  #isBehind(): boolean {
    const machine = this.#machine;
    return (
      machine !== null && !machine.gone && machine.view === 'up' && this.#pushed !== this.#wanted.join('\n')
    );
  }
}
