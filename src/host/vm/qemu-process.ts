/**
 * QEMU as a process: started so that it outlives us, found again after our restart, seen to die.
 *
 * Invariants:
 * - the folder of its sockets is its user's while it begins to listen, and ours before its guest runs or has a memory;
 * - the process is a session of its own, its output goes to a file, its folder is `/`, its environment is fixed:
 *   nothing ties it to the process that started it;
 * - a launch either returns a QEMU that answers QMP, or leaves no process behind;
 * - in a jail our child is bubblewrap, which waits for QEMU; the identity is QEMU's, by its pid on this host.
 */
import { type ChildProcess, type StdioOptions, spawn } from 'node:child_process';
import {
  closeSync,
  constants,
  fstatSync,
  ftruncateSync,
  openSync,
  readSync,
  rmSync,
  writeSync,
} from 'node:fs';
import { basename, dirname } from 'node:path';
import type { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { assert } from '../../lib/assert.ts';
import { backoffMs, pause } from '../../lib/backoff.ts';
import { errnoOf, messageOf } from '../../lib/errors.ts';
import { isId } from '../../lib/ids.ts';
import { untrustedText } from '../../lib/untrusted-text.ts';
import { QmpClient } from '../qmp/qmp-client.ts';
import { CLEAN_ENV, inJail, type Jail, type JailFiles } from './jail.ts';
import {
  allPids,
  commandLineOf,
  identityOf,
  isAlive,
  isStopped,
  killProcess,
  type ProcessIdentity,
  waitForExit,
} from './process-identity.ts';
import { vmSockets } from './qemu-command.ts';
import { takeRuntimeDir } from './uid.ts';

/** Of a QEMU that is given a memory to go on from, the file that it reads it from. */
export const MEMORY_FD = 3;
/** Where bubblewrap says which process QEMU is. It does not pass it on. */
const INFO_FD = 4;
const LOG_TAIL_BYTES = 4_096;
const LOG_TAIL_LINES = 5;
/** From the end of the QMP connection to the end of the process, which still closes its images. */
const EXIT_GRACE_MS = 2_000;

export interface LaunchOptions {
  readonly qemu_binary: string;
  /** From qemuArguments. */
  readonly arguments: readonly string[];
  /** Absent: as ourselves, where we are not root. */
  readonly run_as?: { readonly uid: number; readonly gid: number };
  /** Takes `run_as`. Absent: it sees what its user may. */
  readonly jail?: { readonly jail: Jail; readonly files: JailFiles };
  readonly runtime_dir: string;
  /** Ours; QEMU has it as {@link MEMORY_FD}. */
  readonly memory_fd?: number;
  /** QEMU's own messages; emptied at the start. Keep it bounded with {@link boundLog}. */
  readonly log_path: string;
  /** Until QMP answers. Default 15 s. */
  readonly timeout_ms?: number;
}

export interface LaunchedVm {
  readonly identity: ProcessIdentity;
  /** Negotiated; the VM is paused (`prelaunch`). */
  readonly qmp: QmpClient;
}

/** QEMU did not come up. The message ends with its own last words. */
export class QemuLaunchError extends Error {
  override name = 'QemuLaunchError';
  readonly log_tail: readonly string[];

  constructor(message: string, log_tail: readonly string[], cause?: unknown) {
    super(log_tail.length > 0 ? `${message}: ${log_tail.join(' | ')}` : message, { cause });
    this.log_tail = log_tail;
  }
}

/**
 * Starts QEMU and connects to its monitor. Rejects with {@link QemuLaunchError}: a missing file, a port in use, a
 * folder that the VM's user cannot reach, no monitor in time.
 */
export async function launchVm(options: LaunchOptions): Promise<LaunchedVm> {
  // Else the monitor of a predecessor in the same folder could answer before the new QEMU listens.
  for (const path of Object.values(vmSockets(options.runtime_dir))) rmSync(path, { force: true });
  const log_fd = openSync(
    options.log_path,
    constants.O_CREAT | constants.O_TRUNC | constants.O_WRONLY | constants.O_APPEND | constants.O_NOFOLLOW,
    0o600,
  );
  const timeout_ms = options.timeout_ms ?? 15_000;
  const deadline = performance.now() + timeout_ms;
  let child: ChildProcess;
  let failure: string | undefined;
  try {
    child = spawnQemu(options, log_fd);
    child.once('error', (error) => {
      failure = error.message;
    });
    child.once('exit', (code, signal) => {
      failure = `QEMU ended with ${signal ?? `status ${code}`}`;
    });
    child.unref();
  } finally {
    closeSync(log_fd);
  }
  const identity = await (options.jail ? jailedIdentity(child, timeout_ms) : childIdentity(child));
  const qmp = await connectMonitor(vmSockets(options.runtime_dir).qmp, deadline, () => failure);
  if (qmp instanceof QmpClient) failure ??= closeOff(options);
  if (qmp instanceof QmpClient && identity && !failure) return { identity, qmp };

  if (qmp instanceof QmpClient) qmp.close();
  if (identity) {
    killProcess(identity, 'SIGKILL');
    await waitForExit(identity, EXIT_GRACE_MS);
  } else child.kill('SIGKILL');
  const reason = failure ?? (qmp instanceof QmpClient ? 'QEMU ended at once' : qmp);
  throw new QemuLaunchError(`QEMU did not start: ${reason}`, logTail(options.log_path));
}

function spawnQemu({ qemu_binary, run_as, jail, memory_fd, ...options }: LaunchOptions, log_fd: number) {
  assert(!jail || run_as, 'a jail takes a user');
  const command = [qemu_binary, ...options.arguments];
  const [file = '', ...words] =
    jail && run_as ? inJail({ ...jail, user: run_as, info_fd: INFO_FD }, command) : command;
  const stdio: StdioOptions = ['ignore', log_fd, log_fd];
  if (jail) stdio.push(memory_fd ?? 'ignore', 'pipe');
  else if (memory_fd !== undefined) stdio.push(memory_fd);
  return spawn(file, words, {
    detached: true,
    stdio,
    cwd: '/',
    env: CLEAN_ENV,
    ...(jail ? {} : run_as),
  });
}

/** Node has not reaped it yet, so the pid is still this child's, dead or alive. */
function childIdentity({ pid }: ChildProcess): ProcessIdentity | null {
  return pid === undefined ? null : identityOf(pid);
}

/** Of the process that bubblewrap waits for; null when there is none, or it has ended. */
async function jailedIdentity({ stdio }: ChildProcess, timeout_ms: number): Promise<ProcessIdentity | null> {
  const pipe = stdio[INFO_FD] as Readable;
  const late = setTimeout(() => pipe.destroy(), timeout_ms);
  try {
    const { 'child-pid': pid } = JSON.parse(await text(pipe)) as { 'child-pid': number };
    return identityOf(pid);
  } catch {
    // It has ended before it said so: why is in its exit and in the log.
    return null;
  } finally {
    clearTimeout(late);
  }
}

/** That its monitor carries out commands says that it listens on all of them. Answers why it cannot be done. */
function closeOff({ runtime_dir, run_as }: LaunchOptions): string | undefined {
  try {
    if (run_as) takeRuntimeDir(runtime_dir, run_as.uid, Object.values(vmSockets(runtime_dir)));
    return undefined;
  } catch (error) {
    return messageOf(error);
  }
}

/** A QEMU that has taken the connection and says nothing is asked by another: under load one in thousands never greets the first. */
const GREETING_MS = 5_000;

/** The monitor, or the reason why not. QEMU listens before it has read all options, and may yet hang up. */
async function connectMonitor(
  socket_path: string,
  deadline: number,
  failure: () => string | undefined,
): Promise<QmpClient | string> {
  let reason = 'the monitor did not answer in time';
  for (let wait_ms = 2; ; wait_ms = Math.min(10, wait_ms * 1.5)) {
    const left_ms = deadline - performance.now();
    if (failure() !== undefined || left_ms <= 0) return failure() ?? reason;
    try {
      return await QmpClient.connect(socket_path, { timeout_ms: Math.min(left_ms, GREETING_MS) });
    } catch (error) {
      if (!['ENOENT', 'ECONNREFUSED', 'EACCES'].includes(errnoOf(error) ?? '')) reason = messageOf(error);
      await pause(wait_ms);
    }
  }
}

/** Connections that wait to be accepted fill a queue of one or two, and those of dead agents wait there too. */
const QUEUE_IS_FULL = 'EAGAIN';
const NOBODY_LISTENS = ['ENOENT', 'ECONNREFUSED'];

/**
 * The monitor of a QEMU that was left by a process before us; or why not, where nobody listens, or it was silent for
 * `patience_ms`. @throws where that says nothing of QEMU: it is paused, or the trouble is ours
 */
export async function findMonitor(
  identity: ProcessIdentity,
  { path, patience_ms }: { readonly path: string; readonly patience_ms: number },
): Promise<QmpClient | Error> {
  const deadline = performance.now() + patience_ms;
  for (let attempt = 0; ; attempt++) {
    if (isStopped(identity)) throw new Error('its process is paused');
    try {
      return await QmpClient.connect(path, { timeout_ms: Math.max(1, deadline - performance.now()) });
    } catch (error) {
      assert(error instanceof Error, 'a failed connection says why');
      const code = errnoOf(error);
      if (isStopped(identity)) throw new Error('its process is paused', { cause: error });
      if (NOBODY_LISTENS.includes(code ?? '') || !isAlive(identity)) return error;
      if (code !== undefined && code !== QUEUE_IS_FULL) throw error;
      if (performance.now() >= deadline) return error;
      await pause(backoffMs(attempt, 20, 500));
    }
  }
}

/** `exited`: the process is gone. `disconnected`: it lives, but its monitor no longer speaks with us. */
export type VmEnd = 'exited' | 'disconnected';

/**
 * Tells once how it ended, promptly: the kernel closes a dead QEMU's monitor socket at once, whether or not QEMU
 * is our child. Returns the function that stops listening. Closing `qmp` ourselves is told as `disconnected`.
 */
export function onVmExit(
  identity: ProcessIdentity,
  qmp: QmpClient,
  listener: (end: VmEnd) => void,
): () => void {
  let listening = true;
  const stop = qmp.onClose(async (reason) => {
    const gone = reason.by_us ? !isAlive(identity) : await waitForExit(identity, EXIT_GRACE_MS);
    if (listening) listener(gone ? 'exited' : 'disconnected');
  });
  return () => {
    listening = false;
    stop();
  };
}

export interface FoundVm {
  readonly identity: ProcessIdentity;
  readonly instance_id: string;
  /** From the kernel's command line; null when it is not there. */
  readonly vm_id: string | null;
  readonly runtime_dir: string;
}

/** Every living QEMU of ours (by its arguments alone) whose runtime folder lies below `runtime_root`. */
export function findOrphans(runtime_root: string): FoundVm[] {
  assert(runtime_root.startsWith('/'), 'runtime_root must be absolute');
  const root = runtime_root.endsWith('/') ? runtime_root : `${runtime_root}/`;
  const found: FoundVm[] = [];
  for (const pid of allPids()) {
    const identity = identityOf(pid);
    const vm = identity && describeCommandLine(commandLineOf(pid));
    if (identity && vm?.runtime_dir.startsWith(root) && isAlive(identity)) found.push({ identity, ...vm });
  }
  return found;
}

/** What start QEMU, with its arguments after their own. */
const LAUNCHERS: readonly string[] = ['bwrap', 'setpriv'];

/** What {@link qemuArguments} put into an argument vector; null when it is not one of ours, or a launcher's. */
export function describeCommandLine(argv: readonly string[]): Omit<FoundVm, 'identity'> | null {
  if (LAUNCHERS.includes(basename(argv[0] ?? ''))) return null;
  const instance_id = valueAfter(argv, '-name', 'guest=');
  const chardev = valueAfter(argv, '-chardev', 'socket,id=qmp,path=');
  if (instance_id === null || !isId('inst', instance_id) || chardev === null) return null;
  const path = chardev.replace(/,server=on,wait=off$/, '').replaceAll(',,', ',');
  const vm_id = /(?:^| )berth\.vm=(\S+)/.exec(valueAfter(argv, '-append', '') ?? '')?.[1];
  return { instance_id, vm_id: vm_id && isId('vm', vm_id) ? vm_id : null, runtime_dir: dirname(path) };
}

/** The value of the first `option` that starts with `prefix`, without the prefix. */
function valueAfter(argv: readonly string[], option: string, prefix: string): string | null {
  for (const [index, value] of argv.entries()) {
    if (argv[index - 1] === option && value.startsWith(prefix)) return value.slice(prefix.length);
  }
  return null;
}

/**
 * Keeps the last half of `max_bytes` once the log is longer than `max_bytes`. Safe beneath a running QEMU, which
 * appends. Call it now and then: a guest can make QEMU complain.
 */
export function boundLog(log_path: string, max_bytes: number): void {
  const fd = openSync(log_path, constants.O_RDWR | constants.O_APPEND | constants.O_NOFOLLOW);
  try {
    if (fstatSync(fd).size <= max_bytes) return;
    const tail = readTail(fd, Math.floor(max_bytes / 2));
    ftruncateSync(fd, 0);
    writeSync(fd, tail);
  } finally {
    closeSync(fd);
  }
}

/** QEMU's last messages, without its time stamps; empty when there is no log. */
export function logTail(log_path: string): string[] {
  let fd: number;
  try {
    fd = openSync(log_path, constants.O_RDONLY | constants.O_NOFOLLOW);
  } catch {
    return [];
  }
  try {
    const lines = readTail(fd, LOG_TAIL_BYTES).toString('utf8').split('\n');
    const stamp = /^\d{4}-\d\d-\d\dT[\d:.]+Z /;
    return lines
      .map((line) => untrustedText(line.replace(stamp, '')))
      .filter((line) => line !== '')
      .slice(-LOG_TAIL_LINES);
  } finally {
    closeSync(fd);
  }
}

function readTail(fd: number, bytes: number): Buffer {
  const size = fstatSync(fd).size;
  const length = Math.min(size, bytes);
  const buffer = Buffer.alloc(length);
  return buffer.subarray(0, readSync(fd, buffer, 0, length, size - length));
}
