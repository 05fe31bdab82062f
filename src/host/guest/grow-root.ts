/** Grows the root file system of a running guest to its disk's size. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { untrustedText } from '../../shared/untrusted-text.ts';
import type { GuestAgent } from './guest-agent.ts';
import { guestExec } from './guest-command.ts';

const SCRIPT = readFileSync(join(import.meta.dirname, 'grow-root.pl'), 'utf8');
/** Every image has the perl of debian-12 there. */
const PERL = '/usr/lib/berth/perl';
const GROW_MS = 30_000;

/** Rejects, also with the guest agent's errors, unless the guest says that the file system has at least `bytes`. */
export async function growRoot(agent: GuestAgent, bytes: number, signal: AbortSignal): Promise<void> {
  const { exit_code, stderr } = await guestExec(agent, {
    path: `${PERL}/ld-linux-x86-64.so.2`,
    args: ['--library-path', PERL, `${PERL}/perl`, '-', String(bytes)],
    input: SCRIPT,
    timeout_ms: GROW_MS,
    signal,
  });
  if (exit_code !== 0)
    throw new Error(untrustedText(stderr.toString('utf8')) || `the guest's script ended with ${exit_code}`);
}
