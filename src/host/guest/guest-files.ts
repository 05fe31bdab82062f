/**
 * Commands in the guest, and files read there, through its agent. Files are written by commands: qemu-ga's own way makes
 * them of mode 0666, and shows half of one to whoever reads it then; it serves for one that is there, before it is read.
 */
import { pause } from '../../lib/backoff.ts';
import { GuestAgentError, GuestAgentProtocolError, GuestAgentTimeoutError } from './agent-errors.ts';
import type { GuestAgent } from './guest-agent.ts';

const SHELL = '/bin/sh';
const SETSID = '/usr/bin/setsid';
/** One line to the agent; base64 makes it a third longer. */
const CHUNK_BYTES = 1024 * 1024;
const FIRST_POLL_MS = 5;
const MAX_POLL_MS = 250;
/** Of a slow guest: what was begun is to be known by its pid, and what was opened by its handle, else nobody could end it. */
const START_MS = 5_000;
/** An answer that was lost keeps all other calls waiting for so long. The last one comes with all that was printed. */
const ANSWER_MS = 60_000;
const KILL_MS = 5_000;
/** A flush freezes for milliseconds; whoever finds the guest frozen for longer hears of it. */
const FROZEN_MS = 5_000;

export interface GuestCommand {
  /** A program's path, or its name in the agent's PATH. */
  readonly path: string;
  readonly args?: readonly string[];
  /** Replaces the environment when given; else it is the agent's own. */
  readonly env?: readonly string[];
  readonly input?: Uint8Array | string;
  /** For all of it. Default 30 s. */
  readonly timeout_ms?: number;
  /**
   * In a session of its own, so that its time's end ends what it has started too; what it printed by then is answered,
   * `timed_out`. Else running out of time rejects.
   */
  readonly own_session?: boolean;
  /** Kept of stdout and of stderr each. Default 1 MiB; the agent itself keeps 16 MiB. */
  readonly max_output_bytes?: number;
  readonly signal?: AbortSignal;
}

export interface GuestCommandResult {
  /** null when a signal ended it. */
  readonly exit_code: number | null;
  readonly signal: number | null;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  readonly truncated: boolean;
  readonly timed_out: boolean;
}

interface ExecStatus {
  readonly exited?: boolean;
  readonly exitcode?: number;
  readonly signal?: number;
  readonly 'out-data'?: string;
  readonly 'err-data'?: string;
  readonly 'out-truncated'?: boolean;
  readonly 'err-truncated'?: boolean;
}

/**
 * Runs a command in the guest as root and waits for its end; while the file systems are frozen for a flush it waits.
 * Rejects with GuestAgentError (no such program), GuestAgentTimeoutError (the command is then killed, its children are not), the signal's
 * reason, or what {@link GuestAgent.execute} rejects with.
 */
export async function guestExec(agent: GuestAgent, command: GuestCommand): Promise<GuestCommandResult> {
  const timeout_ms = command.timeout_ms ?? 30_000;
  const deadline = performance.now() + timeout_ms;
  const max_output_bytes = command.max_output_bytes ?? 1024 * 1024;
  const now = performance.now();
  const pid = await startCommand(
    agent,
    command,
    Math.min(now + ANSWER_MS, Math.max(deadline, now + START_MS)),
  );
  for (let poll_ms = FIRST_POLL_MS; ; poll_ms = Math.min(MAX_POLL_MS, poll_ms * 1.5)) {
    const left_ms = deadline - performance.now();
    const waited = left_ms > 0 && (await pause(Math.min(poll_ms, left_ms), command.signal));
    if (!waited) {
      const ended = await killCommand(agent, pid, command.own_session === true);
      command.signal?.throwIfAborted();
      if (command.own_session) return { ...resultOf(ended ?? {}, max_output_bytes), timed_out: true };
      throw new GuestAgentTimeoutError(`${command.path} ran longer than ${timeout_ms} ms`);
    }
    const status = await askStatusAgain(agent, pid, deadline);
    if (status?.exited) return resultOf(status, max_output_bytes);
  }
}

/**
 * Up to `max_bytes` of a file of the guest. Rejects with GuestAgentError when there is no such file, when it is
 * longer, and with what {@link GuestAgent.execute} rejects with.
 */
export async function readGuestFile(
  agent: GuestAgent,
  path: string,
  max_bytes: number,
  options: { readonly timeout_ms?: number } = {},
): Promise<Buffer> {
  const handle = await openFile(agent, path, 'r', options);
  try {
    const data = await readOpenFile(agent, handle, max_bytes + 1, options);
    if (data.length > max_bytes)
      throw new GuestAgentError('read', `${path} is longer than ${max_bytes} bytes`);
    return data;
  } finally {
    await closeFile(agent, handle);
  }
}

/**
 * What a file of the guest holds from an offset on, up to `max_bytes`, and the offset that it was read from: 0 where the
 * file has become shorter, its end (and nothing) for `end`. Rejects as {@link readGuestFile}.
 */
export async function readGuestFileFrom(
  agent: GuestAgent,
  path: string,
  from: number | 'end',
  { max_bytes, ...options }: { readonly max_bytes: number; readonly timeout_ms?: number },
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
    const data = await readOpenFile(agent, handle, Math.min(max_bytes, size - offset), options);
    return { offset, data };
  } finally {
    await closeFile(agent, handle);
  }
}

/**
 * Reads a file that grows until `done` says so of what it holds: true; false once `until` (by `performance.now()`) has come.
 * Rejects as {@link readGuestFile}, also when the file is not there yet.
 */
export async function watchGuestFile(
  agent: GuestAgent,
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
      const more = await readOpenFile(agent, handle, watch.max_bytes - held.length, {});
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
 * Writes a file that is there and empty; without a process in the guest, but in pieces. `text` has at most 1 MiB. Rejects with
 * GuestAgentError when there is no such file or no room, and with what {@link GuestAgent.execute} rejects with.
 */
export async function fillGuestFile(
  agent: GuestAgent,
  path: string,
  text: string,
  options: { readonly timeout_ms?: number } = {},
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
  // What the agent has kept of it is written now.
  await agent.execute('guest-file-close', { handle }, options);
}

function openFile(
  agent: GuestAgent,
  path: string,
  mode: 'r' | 'r+',
  { timeout_ms = START_MS }: { readonly timeout_ms?: number },
): Promise<unknown> {
  return agent.execute('guest-file-open', { path, mode }, { timeout_ms: Math.max(timeout_ms, START_MS) });
}

/** Best effort, also where a flush froze the guest meanwhile: what is left open stays so, and the agent can have but 1024. */
async function closeFile(agent: GuestAgent, handle: unknown): Promise<void> {
  const deadline = performance.now() + FROZEN_MS;
  await executeThawed(agent, 'guest-file-close', { handle }, deadline).catch(() => undefined);
}

/** To the end, at most so many bytes. */
async function readOpenFile(
  agent: GuestAgent,
  handle: unknown,
  max_bytes: number,
  options: { readonly timeout_ms?: number },
): Promise<Buffer> {
  const parts: Buffer[] = [];
  for (let left = max_bytes; left > 0; ) {
    const count = Math.min(CHUNK_BYTES, left);
    const reply = (await agent.execute('guest-file-read', { handle, count }, options)) as {
      'buf-b64'?: string;
      eof?: boolean;
    } | null;
    const part = Buffer.from(reply?.['buf-b64'] ?? '', 'base64').subarray(0, left);
    parts.push(part);
    left -= part.length;
    if (reply?.eof || part.length === 0) break;
  }
  return Buffer.concat(parts);
}

async function startCommand(agent: GuestAgent, command: GuestCommand, deadline: number): Promise<number> {
  const args = command.args ?? [];
  // setsid: a child is no group's leader, so it becomes the session's with the pid that it has.
  const [path, arg] = command.own_session ? [SETSID, [command.path, ...args]] : [command.path, args];
  const started = (await executeThawed(
    agent,
    'guest-exec',
    {
      path,
      arg,
      ...(command.env ? { env: command.env } : {}),
      ...(command.input === undefined ? {} : { 'input-data': Buffer.from(command.input).toString('base64') }),
      'capture-output': true,
    },
    deadline,
  )) as { pid?: unknown } | null;
  if (typeof started?.pid !== 'number') throw new GuestAgentProtocolError('guest-exec answered no pid');
  return started.pid;
}

async function askStatus(agent: GuestAgent, pid: number, deadline: number): Promise<ExecStatus | null> {
  return (await executeThawed(agent, 'guest-exec-status', { pid }, deadline)) as ExecStatus | null;
}

/** null also where no answer has come in a while, and there is time to ask again. */
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

/** As `agent.execute`; refused because a flush has frozen the guest, which takes milliseconds, it is asked again. */
async function executeThawed(
  agent: GuestAgent,
  command: string,
  args: Record<string, unknown>,
  deadline: number,
): Promise<unknown> {
  const patience = Math.min(deadline, performance.now() + FROZEN_MS);
  for (let wait_ms = FIRST_POLL_MS; ; wait_ms = Math.min(MAX_POLL_MS, wait_ms * 2)) {
    try {
      return await agent.execute(command, args, { timeout_ms: Math.max(1, deadline - performance.now()) });
    } catch (error) {
      // qemu-ga's words: "Command guest-exec has been disabled: the agent is in frozen state"
      const frozen = error instanceof GuestAgentError && /frozen|disabled/i.test(error.desc);
      if (!frozen || performance.now() + wait_ms >= patience) throw error;
      await pause(wait_ms);
    }
  }
}

/**
 * Best effort: the agent has no command for it, and a guest that hangs cannot be helped. Asking for the status until
 * it has ended also makes the agent forget it; that status is answered.
 */
async function killCommand(agent: GuestAgent, pid: number, with_group: boolean): Promise<ExecStatus | null> {
  const deadline = performance.now() + KILL_MS;
  try {
    const kill = `kill -KILL ${with_group ? '-' : ''}${pid}`;
    await executeThawed(agent, 'guest-exec', { path: SHELL, arg: ['-c', kill] }, deadline);
    for (let poll_ms = FIRST_POLL_MS; performance.now() < deadline; poll_ms *= 2) {
      const status = await askStatus(agent, pid, deadline);
      if (status?.exited) return status;
      await pause(poll_ms);
    }
  } catch {
    // The caller is told of the timeout anyway.
  }
  return null;
}

function resultOf(status: ExecStatus, max_output_bytes: number): GuestCommandResult {
  const stdout = Buffer.from(status['out-data'] ?? '', 'base64');
  const stderr = Buffer.from(status['err-data'] ?? '', 'base64');
  const cut = stdout.length > max_output_bytes || stderr.length > max_output_bytes;
  return {
    exit_code: typeof status.exitcode === 'number' ? status.exitcode : null,
    signal: typeof status.signal === 'number' ? status.signal : null,
    stdout: stdout.subarray(0, max_output_bytes),
    stderr: stderr.subarray(0, max_output_bytes),
    truncated: cut || status['out-truncated'] === true || status['err-truncated'] === true,
    timed_out: false,
  };
}
