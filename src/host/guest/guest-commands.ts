/**
 * Runs the host agent's own short commands in a guest, and reads and fills files there, through QEMU's guest agent.
 * Commands of users are in user-command.ts.
 *
 * - The guest agent refuses commands and files while a flush has frozen the file systems. Commands, and reads and
 *   closes of open files, are repeated until the thaw, for at most 5 s.
 * - A command's output comes in one reply, and a reply has at most 64 KiB: a command must print less than about 45
 *   KiB. A file may be longer: it is read in pieces.
 * - The guest agent would create a file with mode 0666 and fill it step by step, in sight of its readers. So new files
 *   are written by a command; `fillGuestFile` only fills an empty file that exists and that nobody reads yet.
 */
import { pause } from '../../shared/retry.ts';
import {
  GuestAgentError,
  GuestAgentProtocolError,
  GuestAgentTimeoutError,
  type GuestCommands,
} from './guest-agent.ts';

/** The minimum for starting a command or opening a file in a slow guest: without its pid or handle it could not be ended. */
const START_MS = 5_000;
/** A flush freezes for milliseconds. After this the call fails. */
const FROZEN_MS = 5_000;

/** Like `agent.execute`, retried while a flush has frozen the guest: the agent then refuses files and commands. */
async function executeThawed(
  agent: GuestCommands,
  command: string,
  args: Record<string, unknown>,
  deadline: number,
): Promise<unknown> {
  const patience = Math.min(deadline, performance.now() + FROZEN_MS);
  for (let wait_ms = FIRST_POLL_MS; ; wait_ms = Math.min(MAX_POLL_MS, wait_ms * 2)) {
    try {
      return await agent.execute(command, args, { timeout_ms: Math.max(1, deadline - performance.now()) });
    } catch (error) {
      // qemu-ga's message: "Command guest-exec has been disabled: the agent is in frozen state"
      const frozen = error instanceof GuestAgentError && /frozen|disabled/i.test(error.desc);
      if (!frozen || performance.now() + wait_ms >= patience) throw error;
      await pause(wait_ms);
    }
  }
}

/** In base64, with its JSON, less than 64 KiB. */
const PIECE_BYTES = 45 * 1024;

export interface FileOptions {
  /** For opening the file (at least 5 s, the default), and again for reading it. */
  readonly timeout_ms?: number;
}

/**
 * Reads a file of at most `max_bytes`. Rejects with GuestAgentError if there is no such file or it is longer, and as
 * {@link GuestAgent.execute}.
 */
export async function readGuestFile(
  agent: GuestCommands,
  path: string,
  max_bytes: number,
  options: FileOptions = {},
): Promise<Buffer> {
  const handle = await openFile(agent, path, 'r', options);
  try {
    const data = await readOpenFile(agent, handle, max_bytes + 1, deadlineOf(options));
    if (data.length > max_bytes)
      throw new GuestAgentError('read', `${path} is longer than ${max_bytes} bytes`);
    return data;
  } finally {
    await closeFile(agent, handle);
  }
}

/**
 * Reads up to `max_bytes` from an offset, and returns the offset used: 0 if the file is shorter now. `end`: returns the file's size
 * and no data. Rejects as {@link readGuestFile}.
 */
export async function readGuestFileFrom(
  agent: GuestCommands,
  path: string,
  from: number | 'end',
  { max_bytes, ...options }: FileOptions & { readonly max_bytes: number },
): Promise<{ readonly offset: number; readonly data: Buffer }> {
  const handle = await openFile(agent, path, 'r', options);
  const seek = async (offset: number, whence: 'set' | 'end') => {
    const at = await agent.execute('guest-file-seek', { handle, offset, whence }, options);
    return Number((at as { position?: unknown } | null)?.position);
  };
  try {
    const size = await seek(0, 'end');
    if (from === 'end' || from === size) return { offset: size, data: Buffer.alloc(0) };
    const offset = await seek(from < size ? from : 0, 'set');
    const wanted = Math.min(max_bytes, size - offset);
    const data = await readOpenFile(agent, handle, wanted, deadlineOf(options));
    return { offset, data };
  } finally {
    await closeFile(agent, handle);
  }
}

/**
 * Reads a growing file until `done` accepts its content: true; or until `until` (on performance.now's scale): false.
 * Rejects as {@link readGuestFile}, also if the file does not exist yet.
 */
export async function watchGuestFile(
  agent: GuestCommands,
  path: string,
  watch: {
    readonly done: (held: Buffer) => boolean;
    readonly max_bytes: number;
    readonly poll_ms: number;
    readonly until: number;
    readonly signal: AbortSignal;
  },
): Promise<boolean> {
  const handle = await openFile(agent, path, 'r', {});
  try {
    for (let held = Buffer.alloc(0); ; ) {
      const more = await readOpenFile(agent, handle, watch.max_bytes - held.length, deadlineOf({}));
      held = Buffer.concat([held, more]);
      if (watch.done(held)) return true;
      const waits = performance.now() < watch.until && held.length < watch.max_bytes;
      if (!waits || !(await pause(watch.poll_ms, watch.signal))) return false;
    }
  } finally {
    await closeFile(agent, handle);
  }
}

/**
 * Fills an existing empty file without starting a process in the guest. Not atomic. `text`: at most 1 MiB. Rejects with
 * GuestAgentError if there is no such file or no room, and as {@link GuestAgent.execute}.
 */
export async function fillGuestFile(
  agent: GuestCommands,
  path: string,
  text: string,
  options: FileOptions = {},
): Promise<void> {
  const bytes = Buffer.from(text);
  const handle = await openFile(agent, path, 'r+', options);
  try {
    const data = { handle, 'buf-b64': bytes.toString('base64') };
    const reply = (await agent.execute('guest-file-write', data, options)) as { count?: unknown } | null;
    if (reply?.count !== bytes.length) throw new GuestAgentError('write', `${path} was not written whole`);
  } catch (error) {
    await closeFile(agent, handle);
    throw error;
  }
  // The agent writes its buffer at the close.
  await agent.execute('guest-file-close', { handle }, options);
}

function openFile(
  agent: GuestCommands,
  path: string,
  mode: 'r' | 'r+',
  { timeout_ms = START_MS }: FileOptions,
): Promise<unknown> {
  return agent.execute('guest-file-open', { path, mode }, { timeout_ms: Math.max(timeout_ms, START_MS) });
}

/** Best effort, and retried while the guest is frozen: the agent can hold 1,024 open files. */
async function closeFile(agent: GuestCommands, handle: unknown): Promise<void> {
  const deadline = performance.now() + FROZEN_MS;
  await executeThawed(agent, 'guest-file-close', { handle }, deadline).catch(() => undefined);
}

/**
 * Reads to the end, at most `max_bytes`, in pieces. A short piece is the end, whatever the guest says, so a guest cannot make this
 * read for ever.
 */
async function readOpenFile(
  agent: GuestCommands,
  handle: unknown,
  max_bytes: number,
  deadline: number,
): Promise<Buffer> {
  const parts: Buffer[] = [];
  for (let left = max_bytes; left > 0; ) {
    const count = Math.min(PIECE_BYTES, left);
    const args = { handle, count };
    const reply = (await executeThawed(agent, 'guest-file-read', args, deadline)) as { 'buf-b64'?: unknown };
    const part = bytesOf(reply?.['buf-b64']).subarray(0, count);
    parts.push(part);
    left -= part.length;
    if (part.length < count) break;
  }
  return Buffer.concat(parts);
}

/** Decodes base64. Anything but a string is empty: Buffer.from would allocate the length that an object claims. */
export function bytesOf(base64: unknown): Buffer {
  return Buffer.from(typeof base64 === 'string' ? base64 : '', 'base64');
}

function deadlineOf({ timeout_ms = START_MS }: FileOptions): number {
  return performance.now() + timeout_ms;
}

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
export async function guestExec(agent: GuestCommands, command: GuestCommand): Promise<GuestCommandResult> {
  const { result, timed_out } = await runToEnd(agent, command, (pid) => `kill -KILL ${pid}`);
  if (timed_out)
    throw new GuestAgentTimeoutError(`${command.path} ran longer than ${command.timeout_ms ?? 30_000} ms`);
  return result;
}

/** `kill`: a shell command that ends it after the timeout; its output so far is returned. Rejects as {@link guestExec}. */
export async function runToEnd(
  agent: GuestCommands,
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

async function start(agent: GuestCommands, command: GuestCommand, deadline: number): Promise<number> {
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

async function askStatus(agent: GuestCommands, pid: number, deadline: number): Promise<ExecStatus | null> {
  return (await executeThawed(agent, 'guest-exec-status', { pid }, deadline)) as ExecStatus | null;
}

/** Like {@link askStatus}, but a missing answer is null while there is time to ask again. */
async function askStatusAgain(
  agent: GuestCommands,
  pid: number,
  deadline: number,
): Promise<ExecStatus | null> {
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
async function killCommand(agent: GuestCommands, pid: number, kill: string): Promise<ExecStatus | null> {
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
