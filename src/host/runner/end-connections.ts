import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { GuestAgent } from '../guest/guest-agent.ts';
import { guestExec } from '../guest/guest-files.ts';

const SCRIPT = readFileSync(join(import.meta.dirname, 'end-connections.sh'), 'utf8');

/** `SHA256:…`, as sshd logs it, of a line `<type> <base64> …`. */
export function fingerprintOf(line: string): string {
  const blob = Buffer.from(line.split(' ')[1] ?? '', 'base64');
  return `SHA256:${createHash('sha256').update(blob).digest('base64').replace(/=+$/, '')}`;
}

/**
 * Ends the SSH connections of every key but these, whatever they are used for: each has a process of its own.
 * Answers how many. Rejects when the guest does not confirm that all of them have ended.
 */
export async function endConnectionsBut(
  agent: GuestAgent,
  fingerprints: readonly string[],
  timeout_ms: number,
): Promise<number> {
  const result = await guestExec(agent, {
    path: '/bin/sh',
    args: ['-c', SCRIPT],
    input: fingerprints.map((each) => `${each}\n`).join(''),
    timeout_ms,
  });
  const ended = Number(result.stdout.toString('latin1').trim());
  if (result.exit_code !== 0 || !Number.isInteger(ended)) {
    const said = result.stderr.toString('utf8').trim().slice(0, 300);
    throw new Error(`the guest could not end connections (exit code ${result.exit_code}): ${said}`);
  }
  return ended;
}
