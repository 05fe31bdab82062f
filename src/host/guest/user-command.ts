/**
 * A user's command in the guest, whatever it prints: a reply of the agent holds the first of it, files of the guest the rest
 * (user-command.sh), which are read in pieces.
 */
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { GuestAgentError } from './agent-errors.ts';
import type { GuestAgent } from './guest-agent.ts';
import { type GuestCommandResult, guestExec, runToEnd } from './guest-command.ts';
import { readGuestFile } from './guest-files.ts';

const SCRIPT = readFileSync(join(import.meta.dirname, 'user-command.sh'), 'utf8');
const BUSYBOX = '/usr/lib/berth/busybox';
/** On tmpfs: written while the disk is frozen too. */
const FILES = '/run/berth/exec-';
/** Of both streams, as base64, one reply. */
const INLINE_BYTES = 16 * 1024;
const BEGUN = Buffer.from('begun\n');
/** For the rest of one stream. */
const READ_MS = 60_000;

export interface UserCommand {
  /** A program's path, or its name in the agent's PATH. */
  readonly path: string;
  readonly args: readonly string[];
  readonly input: Uint8Array | string;
  readonly timeout_ms: number;
  /** Kept of stdout and of stderr each; more than 16 KiB. */
  readonly max_output_bytes: number;
  readonly signal: AbortSignal;
}

export interface UserCommandResult extends GuestCommandResult {
  /** It has printed more than is here. */
  readonly truncated: boolean;
  /** It was killed, with all that it had started in its session, and this is what it had printed. */
  readonly timed_out: boolean;
}

/**
 * Runs it as root in a session of its own. Rejects with GuestAgentError where the guest cannot run it (no room for what it
 * prints, no process), the signal's reason, or what {@link GuestAgent.execute} rejects with.
 */
export async function runUserCommand(agent: GuestAgent, command: UserCommand): Promise<UserCommandResult> {
  const { path, args, max_output_bytes } = command;
  const name = FILES + randomBytes(8).toString('hex');
  const sizes = [INLINE_BYTES, max_output_bytes + 1 - INLINE_BYTES].map(String);
  const script = ['sh', '-c', SCRIPT, 'user-command', BUSYBOX, name, ...sizes, path, ...args];
  const { result, timed_out } = await runToEnd(agent, { ...command, path: BUSYBOX, args: script }, (pid) =>
    killWords(pid, name),
  );
  const begun = result.stdout.subarray(0, BEGUN.length).equals(BEGUN);
  if (!begun && !timed_out) throw new GuestAgentError('guest-exec', result.stderr.toString('utf8'));
  const inline = [result.stdout.subarray(BEGUN.length), result.stderr] as const;
  const [stdout, stderr] = [
    await wholeOutput(agent, inline[0], `${name}.1`, max_output_bytes),
    await wholeOutput(agent, inline[1], `${name}.2`, max_output_bytes),
  ];
  if (inline.some(isFull)) await removeFiles(agent, name);
  return {
    ...result,
    stdout: stdout.data,
    stderr: stderr.data,
    truncated: stdout.truncated || stderr.truncated,
    timed_out,
  };
}

/** Its session; or itself, where it has not come to one: then those who wait to read its pipes are to see an end. */
function killWords(pid: number, name: string): string {
  const ends = [`${name}.out`, `${name}.err`].map((pipe) => `[ ! -p ${pipe} ] || : <> ${pipe}`);
  return `kill -KILL -${pid} 2> /dev/null || { kill -KILL ${pid}; ${ends.join('; ')}; }`;
}

function isFull(inline: Buffer): boolean {
  return inline.length >= INLINE_BYTES;
}

async function wholeOutput(
  agent: GuestAgent,
  inline: Buffer,
  file: string,
  max_bytes: number,
): Promise<{ readonly data: Buffer; readonly truncated: boolean }> {
  if (!isFull(inline)) return { data: inline, truncated: false };
  const first = inline.subarray(0, INLINE_BYTES);
  try {
    const rest = await readGuestFile(agent, file, max_bytes + 1 - first.length, { timeout_ms: READ_MS });
    const data = Buffer.concat([first, rest]);
    return { data: data.subarray(0, max_bytes), truncated: data.length > max_bytes };
  } catch (error) {
    // There was no room for it in the guest.
    if (error instanceof GuestAgentError) return { data: first, truncated: true };
    throw error;
  }
}

async function removeFiles(agent: GuestAgent, name: string): Promise<void> {
  const args = ['rm', '-f', `${name}.1`, `${name}.2`];
  await guestExec(agent, { path: BUSYBOX, args, timeout_ms: READ_MS }).catch(() => undefined);
}
