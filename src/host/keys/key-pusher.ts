/**
 * Keeps the guest's authorized keys as the control plane last said, as soon as the guest lets it: while its file
 * systems are frozen the agent refuses, and it is tried again.
 *
 * Keys are applied once they are in their file (the next handshake obeys) and the connections of all others have
 * ended; that is reported. Until it is heard of after a revocation, the ingress lets nobody through to this guest.
 *
 * A call whose answer does not come may have been carried out, or may yet: until one is answered, what is in force is
 * unknown, and the keys that were sent may be.
 */
import { backoffMs, pause } from '../../lib/backoff.ts';
import { messageOf } from '../../lib/errors.ts';
import type { VmId } from '../../lib/ids.ts';
import type { Log } from '../../lib/log.ts';
import { fingerprintOf } from '../../lib/ssh-fingerprint.ts';
import type { GuestAgent } from '../guest/guest-agent.ts';
import { applyFirstKeys, applyKeys } from './apply-keys.ts';

/** Long: a slow guest is better waited for than begun with anew. The ingress does not wait as long. */
const APPLY_MS = 30_000;
/** A login that had passed the old keys when they were replaced is in sshd's log by then. */
const LOOK_AGAIN_MS = 2_000;

/** What the pusher needs of a machine. */
export interface KeyedMachine {
  readonly record: { readonly vm_id: VmId; readonly epoch: number };
  readonly agent: GuestAgent;
  readonly view: 'booting' | 'up' | 'off';
  readonly gone: boolean;
  readonly resets: number;
  readonly may_be_connected: boolean;
  readonly given_keys: readonly string[] | null;
  noteGiven(authorized_keys: readonly string[] | null, resets: number): void;
}

type Report = (machine: KeyedMachine, fingerprints: readonly string[]) => Promise<void>;

export class KeyPusher {
  readonly #log: Log;
  readonly #report: Report;
  #wanted: readonly string[] = [];
  /** In force in the guest; null: unknown. */
  #applied: readonly string[] | null = null;
  /** What was in force when it was last known, and all that was sent since. */
  #maybe_applied: readonly string[] = [];
  #machine: KeyedMachine | null = null;
  #loop: Promise<void> | null = null;
  #reporting: Promise<void> = Promise.resolve();
  #look: NodeJS.Timeout | undefined;
  /** Counts rests: what was begun before one counts for nothing after it. */
  #round = 0;

  /**
   * `report` is called with the fingerprints of every set that was applied to a machine that is followed; and, when a key is
   * revoked that may be in force though nobody was told, of all that may be.
   */
  constructor(log: Log, report: Report) {
    this.#log = log;
    this.#report = report;
  }

  /** In force in the guest, the connections of all other keys ended for good; null: unknown, or not yet. */
  get settled(): readonly string[] | null {
    return this.#look === undefined ? this.#applied : null;
  }

  want(lines: readonly string[]): void {
    this.#wanted = lines;
    this.#tellOfRevoked();
    this.#work();
  }

  /**
   * Applies now, whatever was applied before: the guest has just booted, was resumed, or was adopted. Nothing is to be done in
   * one that began with them, or was suspended with them. Answers fingerprints.
   */
  async apply(machine: KeyedMachine): Promise<readonly string[]> {
    const given = machine.given_keys;
    if (sameLines(given, this.#wanted)) return this.#confirm(this.#wanted);
    if (given?.length === 0) return this.#apply(machine, 'begin');
    return this.#apply(machine, machine.may_be_connected ? 'end' : 'replace');
  }

  /** Applies changes to this machine from now on. */
  follow(machine: KeyedMachine): void {
    this.#machine = machine;
    this.#tellOfRevoked();
    this.#work();
  }

  /**
   * Applies changes to none; resolves when no report is under way: they stay in the order of what they tell. What a
   * hung guest still owes an answer to is not waited for.
   */
  async pause(): Promise<void> {
    this.#machine = null;
    this.#round += 1;
    await this.#reporting.catch(() => undefined);
  }

  /** Rests for good. */
  close(): Promise<void> {
    clearTimeout(this.#look);
    return this.pause();
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
        // Where no key was taken away nobody has to go.
        const end = this.#applied?.every((line) => this.#wanted.includes(line)) !== true;
        const fingerprints = await this.#apply(machine, end ? 'end' : 'replace');
        this.#log.info({ keys: fingerprints.length }, 'keys applied');
        await this.#tell(machine, fingerprints);
        attempt = 0;
      } catch (error) {
        if (attempt === 2) this.#log.warn({ reason: messageOf(error) }, 'keys could not be applied yet');
        await pause(backoffMs(attempt, 50, 1_000));
      }
    }
  }

  async #apply(machine: KeyedMachine, what: 'begin' | 'replace' | 'end'): Promise<readonly string[]> {
    const [lines, round, { resets }] = [this.#wanted, this.#round, machine];
    this.#applied = null;
    this.#maybe_applied = [...new Set([...this.#maybe_applied, ...lines])];
    machine.noteGiven(null, resets);
    const { ended } =
      what === 'begin'
        ? await applyFirstKeys(machine.agent, lines, { timeout_ms: APPLY_MS })
        : await applyKeys(machine.agent, lines, { what, timeout_ms: APPLY_MS });
    if (ended > 0) this.#log.info({ ended }, 'connections of revoked keys ended');
    if (round !== this.#round) throw new Error('the guest was given up meanwhile');
    if (what === 'end') this.#lookLater(machine, resets);
    return this.#confirm(lines);
  }

  #confirm(lines: readonly string[]): readonly string[] {
    this.#applied = lines;
    this.#maybe_applied = lines;
    return lines.map(fingerprintOf);
  }

  /** In the order of these calls. */
  #tell(machine: KeyedMachine, fingerprints: readonly string[]): Promise<void> {
    const before = this.#reporting.catch(() => undefined);
    this.#reporting = before.then(() => this.#report(machine, fingerprints));
    return this.#reporting;
  }

  /** Else the control plane would go by the set that was confirmed before that key was sent. */
  #tellOfRevoked(): void {
    const maybe = this.#maybe_applied;
    if (!this.#machine || this.#applied || maybe.every((line) => this.#wanted.includes(line))) return;
    this.#tell(this.#machine, maybe.map(fingerprintOf)).catch((error: unknown) =>
      this.#log.warn({ reason: messageOf(error) }, 'a revocation that waits could not be told'),
    );
  }

  #lookLater(machine: KeyedMachine, resets: number): void {
    clearTimeout(this.#look);
    this.#look = setTimeout(() => void this.#lookAgain(machine, resets), LOOK_AGAIN_MS).unref();
  }

  /** Until every connection of before has been judged, or a reset has ended them. */
  async #lookAgain(machine: KeyedMachine, resets: number): Promise<void> {
    if (machine.gone || machine.resets !== resets) {
      this.#look = undefined;
      return;
    }
    // A key is being added, or a suspend tried, or the guest is not said to be up yet.
    if (this.#machine !== machine || this.#isBehind()) return this.#lookLater(machine, resets);
    try {
      const options = { what: 'look', timeout_ms: APPLY_MS } as const;
      const { ended, young } = await applyKeys(machine.agent, this.#wanted, options);
      if (ended > 0) this.#log.info({ ended }, 'connections of revoked keys ended');
      this.#look = undefined;
      if (young > 0) this.#lookLater(machine, resets);
    } catch (error) {
      this.#log.warn({ reason: messageOf(error) }, 'connections could not be looked at again');
      this.#applied = null;
      this.#work();
    }
  }

  #isBehind(): boolean {
    const machine = this.#machine;
    return (
      machine !== null && !machine.gone && machine.view === 'up' && !sameLines(this.#applied, this.#wanted)
    );
  }
}

/** Both sorted. */
function sameLines(one: readonly string[] | null, other: readonly string[]): boolean {
  return one !== null && one.join('\n') === other.join('\n');
}
