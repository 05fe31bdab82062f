/**
 * Keeps the guest's authorized keys as the control plane last said, as soon as the guest lets it: while its file
 * systems are frozen the agent refuses, and the push is tried again.
 *
 * Keys are applied once they are in their file (the next handshake obeys) and the connections of all others have
 * ended; that is reported. Until it is heard of after a revocation, the ingress lets nobody through to this guest.
 */
import { backoffMs, pause } from '../../lib/backoff.ts';
import { messageOf } from '../../lib/errors.ts';
import type { Log } from '../../lib/log.ts';
import { endConnectionsBut, fingerprintOf } from './end-connections.ts';
import type { Machine } from './machine.ts';
import { pushKeys } from './personalise.ts';

/** For each of the two steps in the guest. */
const STEP_MS = 5_000;
/** A login that had passed the old file when it was replaced is in the log by then. */
const LOOK_AGAIN_MS = 2_000;

export class KeyPusher {
  readonly #log: Log;
  readonly #report: (machine: Machine, fingerprints: readonly string[]) => Promise<void>;
  #wanted: readonly string[] = [];
  #applied: string | null = null;
  #machine: Machine | null = null;
  #loop: Promise<void> | null = null;

  /** `report` is called with the fingerprints of every set that was applied to a machine that is followed. */
  constructor(log: Log, report: (machine: Machine, fingerprints: readonly string[]) => Promise<void>) {
    this.#log = log;
    this.#report = report;
  }

  want(lines: readonly string[]): void {
    this.#wanted = lines;
    this.#work();
  }

  /** Applies now, whatever was applied before: the guest has just booted, or was adopted. Answers fingerprints. */
  async apply(machine: Machine): Promise<readonly string[]> {
    const lines = this.#wanted;
    const fingerprints = lines.map(fingerprintOf);
    await pushKeys(machine.agent, lines, STEP_MS);
    if (machine.may_be_connected) {
      const ended = await endConnectionsBut(machine.agent, fingerprints, STEP_MS);
      if (ended > 0) this.#log.info({ ended }, 'connections of revoked keys ended');
    }
    this.#applied = lines.join('\n');
    return fingerprints;
  }

  /** Applies changes to this machine from now on. */
  follow(machine: Machine): void {
    this.#machine = machine;
    this.#work();
  }

  /** Applies changes to none; resolves when nothing is under way: reports stay in the order of what they tell. */
  async rest(): Promise<void> {
    this.#machine = null;
    await this.#loop;
  }

  #work(): void {
    this.#loop ??= this.#catchUp().finally(() => {
      this.#loop = null;
      // What was wanted between the last look and here.
      if (this.#isBehind()) this.#work();
    });
  }

  async #catchUp(): Promise<void> {
    for (let attempt = 0; this.#isBehind(); attempt++) {
      const machine = this.#machine;
      if (!machine) return;
      try {
        const fingerprints = await this.apply(machine);
        this.#log.info({ keys: fingerprints.length }, 'keys applied');
        await this.#report(machine, fingerprints);
        setTimeout(() => void this.#lookAgain(machine), LOOK_AGAIN_MS).unref();
        attempt = 0;
      } catch (error) {
        if (attempt === 2) this.#log.warn({ reason: messageOf(error) }, 'keys could not be applied yet');
        await pause(backoffMs(attempt, 50, 1_000));
      }
    }
  }

  async #lookAgain(machine: Machine): Promise<void> {
    if (this.#machine !== machine || this.#isBehind() || machine.gone || machine.view !== 'up') return;
    try {
      const ended = await endConnectionsBut(machine.agent, this.#wanted.map(fingerprintOf), STEP_MS);
      if (ended > 0) this.#log.info({ ended }, 'connections of revoked keys ended');
    } catch (error) {
      this.#log.warn({ reason: messageOf(error) }, 'connections could not be looked at again');
      this.#applied = null;
      this.#work();
    }
  }

  #isBehind(): boolean {
    const machine = this.#machine;
    return (
      machine !== null && !machine.gone && machine.view === 'up' && this.#applied !== this.#wanted.join('\n')
    );
  }
}
