import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fingerprintOf } from '../../lib/ssh-fingerprint.ts';
import { untrustedText } from '../../lib/untrusted-text.ts';
import type { GuestAgent } from '../guest/guest-agent.ts';
import { guestExec } from '../guest/guest-command.ts';
import { fillGuestFile } from '../guest/guest-files.ts';

const SCRIPT = readFileSync(join(import.meta.dirname, 'apply-keys.sh'), 'utf8');

const AUTHORIZED_KEYS = '/run/berth/authorized_keys';

/** The script's exit code for it. */
const SUPERSEDED = 4;

export interface AppliedKeys {
  /** Connections ended. */
  readonly ended: number;
  /** Connections so new that nothing can be said of them yet: apply again in a moment. */
  readonly young: number;
}

/**
 * Rises with every call, also over restarts of this process. Of each guest its own: where the clock was set back since,
 * the guest says what has come before, and what it says is its own affair.
 */
const last_sequences = new WeakMap<GuestAgent, number>();
function nextSequence(agent: GuestAgent): number {
  const next = Math.max((last_sequences.get(agent) ?? 0) + 1, Date.now());
  last_sequences.set(agent, next);
  return next;
}

/**
 * `replace`: the keys that sshd lets in become these; the next handshake obeys. `end`: and the SSH connections that
 * came with any other key end, whatever they are used for: each has a process of its own. `look`: they end, and the
 * keys are left as they are. Rejects when the guest does not confirm all of it within `timeout_ms`, and when a call with a
 * higher sequence came first: the next has a higher one than that.
 */
export async function applyKeys(
  agent: GuestAgent,
  lines: readonly string[],
  { what, timeout_ms }: { readonly what: 'replace' | 'end' | 'look'; readonly timeout_ms: number },
): Promise<AppliedKeys> {
  const result = await guestExec(agent, {
    // The same shell that init has run, whatever the image's own is: under emulation a second one costs its start.
    path: '/usr/lib/berth/busybox',
    args: ['sh', '-c', SCRIPT, 'apply-keys', what, String(nextSequence(agent)), ...lines.map(fingerprintOf)],
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
 * The same in a guest that is booting and has been sent no keys since its QEMU began: its file of them is there and empty, and
 * nobody is let through to it yet. The script would take 0.2 s of an emulated boot. Where this fails it may be carried out
 * later, but before anything that is sent then, which is to be {@link applyKeys}: that puts another file in its place.
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
