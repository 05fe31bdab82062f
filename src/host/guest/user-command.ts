/**
 * Runs a user's command in a guest (user-command.sh). The guest agent's reply has the first part of the output. The
 * rest is in files of the guest, which are read in pieces.
 */
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { GuestAgentError, type GuestCommands } from './guest-agent.ts';
import { type GuestCommandResult, guestExec, readGuestFile, runToEnd } from './guest-commands.ts';

const SCRIPT = readFileSync(join(import.meta.dirname, 'user-command.sh'), 'utf8');
const BUSYBOX = '/usr/lib/berth/busybox';
/** On tmpfs: written while the disk is frozen too. */
const FILES = '/run/berth/exec-';
/** Of each stream; both fit into one reply, in base64. */
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
  /** Of stdout and stderr each; more than 16 KiB. */
  readonly max_output_bytes: number;
  readonly signal: AbortSignal;
}

export interface UserCommandResult extends GuestCommandResult {
  /** It has printed more than is returned. */
  readonly truncated: boolean;
  /** Its session was killed; this is its output until then. */
  readonly timed_out: boolean;
}

/**
 * Runs it as root in a new session. Rejects with GuestAgentError if the guest cannot run it (no room for its output, no process),
 * the signal's reason, or as {@link GuestAgent.execute}.
 */
export async function runUserCommand(agent: GuestCommands, command: UserCommand): Promise<UserCommandResult> {
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

/** Kills its session; or the process itself before it has one, and then opens its pipes so that their readers see an end. */
function killWords(pid: number, name: string): string {
  const ends = [`${name}.out`, `${name}.err`].map((pipe) => `[ ! -p ${pipe} ] || : <> ${pipe}`);
  return `kill -KILL -${pid} 2> /dev/null || { kill -KILL ${pid}; ${ends.join('; ')}; }`;
}

function isFull(inline: Buffer): boolean {
  return inline.length >= INLINE_BYTES;
}

async function wholeOutput(
  agent: GuestCommands,
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
    // The guest had no room for the file.
    if (error instanceof GuestAgentError) return { data: first, truncated: true };
    throw error;
  }
}

async function removeFiles(agent: GuestCommands, name: string): Promise<void> {
  const args = ['rm', '-f', `${name}.1`, `${name}.2`];
  await guestExec(agent, { path: BUSYBOX, args, timeout_ms: READ_MS }).catch(() => undefined);
}
