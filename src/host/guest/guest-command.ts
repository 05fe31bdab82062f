/**
 * Runs our own small commands in the guest through its agent, which returns their whole output in one reply: output of more than
 * about 45 KiB breaks the channel's bound. Users' commands are in user-command.ts.
 */
import { pause } from '../../shared/retry.ts';
import { type GuestAgent, GuestAgentProtocolError, GuestAgentTimeoutError } from './guest-agent.ts';
import { bytesOf } from './guest-files.ts';
import { executeThawed, START_MS } from './thawed.ts';

const SHELL = '/bin/sh';
const FIRST_POLL_MS = 5;
const MAX_POLL_MS = 250;
/** How long a lost answer may block other calls. */
const ANSWER_MS = 60_000;
const KILL_MS = 5_000;

export interface GuestCommand {
  /** A program's path, or its name in the agent's PATH. */
  readonly path: string;
  readonly args?: readonly string[];
  /** Replaces the agent's environment. */
  readonly env?: readonly string[];
  readonly input?: Uint8Array | string;
  /** For the whole command. Default 30 s. */
  readonly timeout_ms?: number;
  readonly signal?: AbortSignal;
}

export interface GuestCommandResult {
  /** null: a signal ended it. */
  readonly exit_code: number | null;
  readonly signal: number | null;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
}

interface ExecStatus {
  readonly exited?: unknown;
  readonly exitcode?: unknown;
  readonly signal?: unknown;
  readonly 'out-data'?: unknown;
  readonly 'err-data'?: unknown;
}

/**
 * Runs a command in the guest as root, and waits for its end. Rejects with GuestAgentError (no such program), GuestAgentTimeoutError
 * (the command is killed, its children are not), the signal's reason, or as {@link GuestAgent.execute}.
 */
export async function guestExec(agent: GuestAgent, command: GuestCommand): Promise<GuestCommandResult> {
  const { result, timed_out } = await runToEnd(agent, command, (pid) => `kill -KILL ${pid}`);
  if (timed_out)
    throw new GuestAgentTimeoutError(`${command.path} ran longer than ${command.timeout_ms ?? 30_000} ms`);
  return result;
}

/** `kill`: a shell command that ends it after the timeout; its output so far is returned. Rejects as {@link guestExec}. */
export async function runToEnd(
  agent: GuestAgent,
  command: GuestCommand,
  kill: (pid: number) => string,
): Promise<{ readonly result: GuestCommandResult; readonly timed_out: boolean }> {
  const { timeout_ms = 30_000, signal } = command;
  const now = performance.now();
  const deadline = now + timeout_ms;
  const pid = await start(agent, command, Math.min(now + ANSWER_MS, Math.max(deadline, now + START_MS)));
  for (let poll_ms = FIRST_POLL_MS; ; poll_ms = Math.min(MAX_POLL_MS, poll_ms * 1.5)) {
    const left_ms = deadline - performance.now();
    const waited = left_ms > 0 && (await pause(Math.min(poll_ms, left_ms), signal));
    if (!waited) {
      const ended = await killCommand(agent, pid, kill(pid));
      signal?.throwIfAborted();
      return { result: resultOf(ended ?? {}), timed_out: true };
    }
    const status = await askStatusAgain(agent, pid, deadline);
    if (status?.exited === true) return { result: resultOf(status), timed_out: false };
  }
}

async function start(agent: GuestAgent, command: GuestCommand, deadline: number): Promise<number> {
  const { path, args = [], env, input } = command;
  const words = {
    ...{ path, arg: args, 'capture-output': true },
    ...(env ? { env } : {}),
    ...(input === undefined ? {} : { 'input-data': Buffer.from(input).toString('base64') }),
  };
  const started = (await executeThawed(agent, 'guest-exec', words, deadline)) as { pid?: unknown } | null;
  const pid = started?.pid;
  // It becomes a word of a shell command.
  if (!Number.isSafeInteger(pid)) throw new GuestAgentProtocolError('guest-exec answered no pid');
  return pid as number;
}

async function askStatus(agent: GuestAgent, pid: number, deadline: number): Promise<ExecStatus | null> {
  return (await executeThawed(agent, 'guest-exec-status', { pid }, deadline)) as ExecStatus | null;
}

/** Like {@link askStatus}, but a missing answer is null while there is time to ask again. */
async function askStatusAgain(agent: GuestAgent, pid: number, deadline: number): Promise<ExecStatus | null> {
  const now = performance.now();
  const patience = Math.min(now + ANSWER_MS, Math.max(deadline, now + 1_000));
  try {
    return await askStatus(agent, pid, patience);
  } catch (error) {
    if (error instanceof GuestAgentTimeoutError && performance.now() < deadline) return null;
    throw error;
  }
}

/**
 * Best effort: the agent has no command for it. Polling the status until the end also makes the agent forget the process. Returns
 * that status.
 */
async function killCommand(agent: GuestAgent, pid: number, kill: string): Promise<ExecStatus | null> {
  const deadline = performance.now() + KILL_MS;
  try {
    await executeThawed(agent, 'guest-exec', { path: SHELL, arg: ['-c', kill] }, deadline);
    for (let poll_ms = FIRST_POLL_MS; performance.now() < deadline; poll_ms *= 2) {
      const status = await askStatus(agent, pid, deadline);
      if (status?.exited === true) return status;
      await pause(poll_ms);
    }
  } catch {
    // The caller reports the timeout anyway.
  }
  return null;
}

function resultOf(status: ExecStatus): GuestCommandResult {
  return {
    exit_code: numberIn(status.exitcode),
    signal: numberIn(status.signal),
    stdout: bytesOf(status['out-data']),
    stderr: bytesOf(status['err-data']),
  };
}

/** A guest can send anything. */
function numberIn(value: unknown): number | null {
  return Number.isSafeInteger(value) ? (value as number) : null;
}
