/**
 * Keeps a guest's authorized SSH keys as the control plane last set them: writes them through the guest agent, and ends
 * the connections of keys that are gone.
 *
 * Keys count as applied once they are in their file (the next handshake uses them) and the connections of all other
 * keys have ended. That is reported; after a revocation the ingress makes no connection to this guest until then.
 *
 * Invariant: a call without an answer may have been executed, or may still be. Until a call is answered, the keys in
 * force are unknown, and every key that was sent may be in force.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { messageOf } from '../../shared/errors.ts';
import type { VmId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import { fingerprintOf } from '../../shared/ssh-fingerprint.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import type { GuestCommands } from './guest-agent.ts';
import { fillGuestFile, guestExec } from './guest-commands.ts';

/** `NAME=value` each; no value has a space or a quotation mark. */
export type SessionEnvironment = readonly string[];

/**
 * Lines of authorized_keys: a key, with the environment of its sessions before it where there is one. Pure.
 *
 * sshd reads the lines at each login, so a change needs no restart of sshd. It sets the variables for every user, shell and command,
 * with every distribution, and takes only names that its settings allow.
 */
export function linesWithEnvironment(
  keys: readonly string[],
  environment: SessionEnvironment,
): readonly string[] {
  if (environment.length === 0) return keys;
  const options = environment.map((each) => `environment="${each}"`).join(',');
  return keys.map((key) => `${options} ${key}`);
}

export function fingerprintOfLine(line: string): string {
  return fingerprintOf(keyOf(line));
}

/** Whether `lines` allow no key that `others` do not allow. */
export function keysAreAmong(lines: readonly string[], others: readonly string[]): boolean {
  const allowed = new Set(others.map(keyOf));
  return lines.every((line) => allowed.has(keyOf(line)));
}

function keyOf(line: string): string {
  return line.startsWith('environment="') ? line.slice(line.indexOf(' ') + 1) : line;
}

const SCRIPT = readFileSync(join(import.meta.dirname, 'apply-keys.sh'), 'utf8');

const AUTHORIZED_KEYS = '/run/berth/authorized_keys';

/** The script's exit code for a call that a later one has overtaken. */
const SUPERSEDED = 4;

export interface AppliedKeys {
  /** Number of connections ended. */
  readonly ended: number;
  /** Number of connections that are too new to judge: apply again in a moment. */
  readonly young: number;
}

/**
 * Rises with every call, also across restarts of this process, per guest. If the clock was set back, the guest answers with the
 * latest sequence; a guest that lies there harms itself alone.
 */
const last_sequences = new WeakMap<GuestCommands, number>();
function nextSequence(agent: GuestCommands): number {
  const next = Math.max((last_sequences.get(agent) ?? 0) + 1, Date.now());
  last_sequences.set(agent, next);
  return next;
}

/**
 * `replace`: sets the keys that sshd accepts, from the next handshake on. `end`: also ends the SSH connections of all other keys.
 * `look`: only ends those connections. Rejects if the guest does not confirm within `timeout_ms`, or if a call with a higher
 * sequence was executed before; the next call then uses a higher one.
 */
export async function applyKeys(
  agent: GuestCommands,
  lines: readonly string[],
  { what, timeout_ms }: { readonly what: 'replace' | 'end' | 'look'; readonly timeout_ms: number },
): Promise<AppliedKeys> {
  const result = await guestExec(agent, {
    // The shell that init has run already: under emulation, starting another one is slow.
    path: '/usr/lib/berth/busybox',
    args: [
      'sh',
      '-c',
      SCRIPT,
      'apply-keys',
      what,
      String(nextSequence(agent)),
      ...lines.map(fingerprintOfLine),
    ],
    input: textOf(lines),
    timeout_ms,
  });
  const said = /^(\d{1,15}) (\d{1,15})\n$/.exec(result.stdout.toString('latin1'));
  if (result.exit_code === SUPERSEDED && said) {
    last_sequences.set(agent, Math.max(last_sequences.get(agent) ?? 0, Number(said[1])));
  }
  if (result.exit_code !== 0 || !said) {
    const why = untrustedText(result.stderr.toString('utf8'));
    throw new Error(`the guest did not apply its keys (exit code ${result.exit_code}): ${why}`);
  }
  return { ended: Number(said[1]), young: Number(said[2]) };
}

/**
 * `replace` for a booting guest that was sent no keys since its QEMU started: its key file exists and is empty, and the ingress
 * connects nobody to it yet. Writing the file saves the script's 0.2 s of an emulated boot. A call that fails may still be
 * executed later, but before a later {@link applyKeys}, which replaces the file.
 */
async function applyFirstKeys(
  agent: GuestCommands,
  lines: readonly string[],
  options: { readonly timeout_ms: number },
): Promise<AppliedKeys> {
  await fillGuestFile(agent, AUTHORIZED_KEYS, textOf(lines), options);
  return { ended: 0, young: 0 };
}

function textOf(lines: readonly string[]): string {
  return lines.map((line) => `${line}\n`).join('');
}

/** Long, because starting again costs a slow guest more. The ingress does not wait this long. */
const APPLY_MS = 30_000;
/** By then, a login that passed with the old keys as they were replaced is in sshd's log. */
const RECHECK_MS = 2_000;

/** What the pusher needs of a machine. */
export interface KeyedMachine {
  readonly record: { readonly vm_id: VmId; readonly epoch: number };
  readonly agent: GuestCommands;
  readonly view: 'booting' | 'up' | 'off';
  readonly gone: boolean;
  readonly resets: number;
  readonly may_be_connected: boolean;
  readonly given_keys: readonly string[] | null;
  noteGiven(authorized_keys: readonly string[] | null, resets: number): void;
}

type Report = (machine: KeyedMachine, fingerprints: readonly string[]) => Promise<void>;

/** Pushes the wanted keys to the guest until it has them. A frozen guest's agent refuses; the push is retried. */
export class KeyPusher {
  readonly #log: Log;
  readonly #report: Report;
  #wanted: readonly string[] = [];
  /** In force in the guest; null: unknown. */
  #applied: readonly string[] | null = null;
  /** The keys last known to be in force, and all that were sent since. */
  #maybe_applied: readonly string[] = [];
  #machine: KeyedMachine | null = null;
  #loop: Promise<void> | null = null;
  #reporting: Promise<void> = Promise.resolve();
  #recheck: NodeJS.Timeout | undefined;
  /** Number of pauses. The result of a call from before a pause is void. */
  #round = 0;

  /**
   * `report` gets the fingerprints of each key set that was applied to the followed machine. When a key is revoked that may be in
   * force without having been reported, it gets all keys that may be in force.
   */
  constructor(log: Log, report: Report) {
    this.#log = log;
    this.#report = report;
  }

  /** In force in the guest, and all connections of other keys have ended. null: unknown, or not yet. */
  get settled(): readonly string[] | null {
    return this.#recheck === undefined ? this.#applied : null;
  }

  want(lines: readonly string[]): void {
    this.#wanted = lines;
    this.#reportRevoked();
    this.#work();
  }

  /**
   * Applies the keys to a guest that has just booted, was resumed, or was adopted; nothing is sent if it was started or suspended
   * with them. Returns their fingerprints.
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
    this.#reportRevoked();
    this.#work();
  }

  /**
   * Stops following; resolves when no report is under way, so that reports stay in order. Does not wait for calls that a hung
   * guest has not answered.
   */
  async pause(): Promise<void> {
    this.#machine = null;
    this.#round += 1;
    await this.#reporting.catch(() => undefined);
  }

  /** Stops following for good. */
  close(): Promise<void> {
    clearTimeout(this.#recheck);
    return this.pause();
  }

  #work(): void {
    this.#loop ??= this.#catchUp().finally(() => {
      this.#loop = null;
      // The wanted keys may have changed since the last check.
      if (this.#isBehind()) this.#work();
    });
  }

  async #catchUp(): Promise<void> {
    for (let attempt = 0; this.#isBehind(); attempt++) {
      const machine = this.#machine;
      if (!machine) return;
      try {
        // If no key was removed, no connection has to end.
        const end = this.#applied === null || !keysAreAmong(this.#applied, this.#wanted);
        const fingerprints = await this.#apply(machine, end ? 'end' : 'replace');
        this.#log.info({ keys: fingerprints.length }, 'keys applied');
        await this.#send(machine, fingerprints);
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
    if (round !== this.#round) throw new Error('the guest is no longer followed');
    if (what === 'end') this.#recheckLater(machine, resets);
    return this.#confirm(lines);
  }

  #confirm(lines: readonly string[]): readonly string[] {
    this.#applied = lines;
    this.#maybe_applied = lines;
    return lines.map(fingerprintOfLine);
  }

  /** Reports, in the order of the calls. */
  #send(machine: KeyedMachine, fingerprints: readonly string[]): Promise<void> {
    const before = this.#reporting.catch(() => undefined);
    this.#reporting = before.then(() => this.#report(machine, fingerprints));
    return this.#reporting;
  }

  /** Without this, the control plane would trust the set that was confirmed before the revoked key was sent. */
  #reportRevoked(): void {
    const maybe = this.#maybe_applied;
    if (!this.#machine || this.#applied || keysAreAmong(maybe, this.#wanted)) return;
    this.#send(this.#machine, maybe.map(fingerprintOfLine)).catch((error: unknown) =>
      this.#log.warn({ reason: messageOf(error) }, 'a pending revocation could not be reported'),
    );
  }

  #recheckLater(machine: KeyedMachine, resets: number): void {
    clearTimeout(this.#recheck);
    this.#recheck = setTimeout(() => void this.#recheckConnections(machine, resets), RECHECK_MS).unref();
  }

  /** Repeats until every older connection was judged, or a reset has ended them. */
  async #recheckConnections(machine: KeyedMachine, resets: number): Promise<void> {
    if (machine.gone || machine.resets !== resets) {
      this.#recheck = undefined;
      return;
    }
    // Keys are being applied, or the guest is not followed now.
    if (this.#machine !== machine || this.#isBehind()) return this.#recheckLater(machine, resets);
    try {
      const options = { what: 'look', timeout_ms: APPLY_MS } as const;
      const { ended, young } = await applyKeys(machine.agent, this.#wanted, options);
      if (ended > 0) this.#log.info({ ended }, 'connections of revoked keys ended');
      this.#recheck = undefined;
      if (young > 0) this.#recheckLater(machine, resets);
    } catch (error) {
      this.#log.warn({ reason: messageOf(error) }, 'connections could not be checked again');
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
