import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { GuestAgentError } from '../guest/agent-errors.ts';
import type { GuestAgent } from '../guest/guest-agent.ts';
import { guestExec } from '../guest/guest-command.ts';
import { readGuestFile } from '../guest/guest-files.ts';
import type { SessionEnvironment } from '../keys/authorized-line.ts';

const SCRIPT = readFileSync(join(import.meta.dirname, 'apply-secrets.sh'), 'utf8');
/** On the disk of a guest that trusts a certificate of ours. */
const KEPT = '/etc/berth-secrets-ca.pem';
const KEPT_MAX_BYTES = 16_384;
/** The script's exit code for a call that a later one has overtaken. */
const SUPERSEDED = 4;

/** What a guest gets of its secrets. */
export interface GuestSecrets {
  /** Empty: there are none. */
  readonly environment: SessionEnvironment;
  /** Of the authority that signs for hosts that a secret names. */
  readonly certificate: string;
}

/** Rises with every call, also across restarts of this process, per guest; as in `keys/apply-keys.ts`. */
const last_sequences = new WeakMap<GuestAgent, number>();
function nextSequence(agent: GuestAgent): number {
  const next = Math.max((last_sequences.get(agent) ?? 0) + 1, Date.now());
  last_sequences.set(agent, next);
  return next;
}

/** Rejects if the guest does not confirm within `timeout_ms`, or executed a later call before. */
export async function applySecrets(
  agent: GuestAgent,
  { environment, certificate }: GuestSecrets,
  { timeout_ms }: { readonly timeout_ms: number },
): Promise<void> {
  const none = environment.length === 0;
  // Most guests never had any: that costs no process.
  if (none && !(await hasTrusted(agent))) return;
  const result = await guestExec(agent, {
    path: '/usr/lib/berth/busybox',
    args: ['sh', '-c', SCRIPT, 'apply-secrets', String(nextSequence(agent)), none ? '' : certificate.trim()],
    input: environment.map((each) => `export ${each}\n`).join(''),
    timeout_ms,
  });
  if (result.exit_code === 0) return;
  if (result.exit_code === SUPERSEDED) {
    const latest = Number(/^(\d{1,15})\n$/.exec(result.stdout.toString('latin1'))?.[1] ?? 0);
    last_sequences.set(agent, Math.max(last_sequences.get(agent) ?? 0, latest));
  }
  const why = untrustedText(result.stderr.toString('utf8'));
  throw new Error(`the guest did not apply its secrets (exit code ${result.exit_code}): ${why}`);
}

async function hasTrusted(agent: GuestAgent): Promise<boolean> {
  try {
    await readGuestFile(agent, KEPT, KEPT_MAX_BYTES);
    return true;
  } catch (error) {
    if (error instanceof GuestAgentError && /No such file/i.test(error.desc)) return false;
    throw error;
  }
}
