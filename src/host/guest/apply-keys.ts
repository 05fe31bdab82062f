/** Writes the authorized keys of a guest, by its agent, and ends connections of keys that are gone. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fingerprintOf } from '../../shared/ssh-fingerprint.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import type { GuestAgent } from './guest-agent.ts';
import { guestExec } from './guest-command.ts';
import { fillGuestFile } from './guest-files.ts';

/** Lines of authorized_keys: a key, with the environment of its sessions before it where there is one. Pure. */

/** `NAME=value` each; no value has a space or a quotation mark. */
export type SessionEnvironment = readonly string[];

/**
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
const last_sequences = new WeakMap<GuestAgent, number>();
function nextSequence(agent: GuestAgent): number {
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
  agent: GuestAgent,
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
export async function applyFirstKeys(
  agent: GuestAgent,
  lines: readonly string[],
  options: { readonly timeout_ms: number },
): Promise<AppliedKeys> {
  await fillGuestFile(agent, AUTHORIZED_KEYS, textOf(lines), options);
  return { ended: 0, young: 0 };
}

function textOf(lines: readonly string[]): string {
  return lines.map((line) => `${line}\n`).join('');
}
