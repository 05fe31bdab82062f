import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { GuestAgent } from '../guest/guest-agent.ts';
import { guestExec } from '../guest/guest-files.ts';

const SCRIPT = readFileSync(join(import.meta.dirname, 'apply-keys.sh'), 'utf8');

/** `SHA256:…`, as sshd logs it, of a line `<type> <base64> …`. */
export function fingerprintOf(line: string): string {
  const blob = Buffer.from(line.split(' ')[1] ?? '', 'base64');
  return `SHA256:${createHash('sha256').update(blob).digest('base64').replace(/=+$/, '')}`;
}

export interface AppliedKeys {
  /** Connections ended. */
  readonly ended: number;
  /** Connections so new that nothing can be said of them yet: apply again in a moment. */
  readonly young: number;
}

/** Rises with every call, also over restarts of this process. */
let last_sequence = 0;
function nextSequence(): number {
  last_sequence = Math.max(last_sequence + 1, Date.now());
  return last_sequence;
}

/**
 * `replace`: the keys that sshd lets in become these; the next handshake obeys. `end`: and the SSH connections that
 * came with any other key end, whatever they are used for: each has a process of its own. `look`: they end, and the
 * keys are left as they are. Rejects when the guest does not confirm all of it within `timeout_ms`.
 */
export async function applyKeys(
  agent: GuestAgent,
  lines: readonly string[],
  { what, timeout_ms }: { readonly what: 'replace' | 'end' | 'look'; readonly timeout_ms: number },
): Promise<AppliedKeys> {
  const result = await guestExec(agent, {
    // The same shell that init has run, whatever the image's own is: under emulation a second one costs its start.
    path: '/usr/lib/berth/busybox',
    args: ['sh', '-c', SCRIPT, 'apply-keys', what, String(nextSequence()), ...lines.map(fingerprintOf)],
    input: lines.map((line) => `${line}\n`).join(''),
    timeout_ms,
  });
  const said = /^(\d+) (\d+)\n$/.exec(result.stdout.toString('latin1'));
  if (result.exit_code !== 0 || !said) {
    const why = result.stderr.toString('utf8').trim().slice(0, 300);
    throw new Error(`the guest did not apply its keys (exit code ${result.exit_code}): ${why}`);
  }
  return { ended: Number(said[1]), young: Number(said[2]) };
}
