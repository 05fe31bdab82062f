/**
 * Starts QEMU as a process that outlives the agent, finds it again after the agent's restart, and detects its end.
 *
 * Invariants:
 * - The folder of QEMU's sockets belongs to the VM's user until QEMU listens, and to the agent before the guest runs.
 * - Nothing ties QEMU to the agent: its session and folder are its own, its output goes to a file, its environment is
 *   fixed.
 * - A launch returns a QEMU that replies to QMP, or leaves no process behind.
 * - With a jail, the agent's child is bubblewrap, which waits for QEMU. The recorded identity is that of QEMU, with its
 *   pid on the host.
 * - A process is known by pid, start time and boot of the host, so no other process with the same pid is signalled or
 *   taken for alive.
 */

import { type ChildProcess, type StdioOptions, spawn } from 'node:child_process';
import {
  closeSync,
  constants,
  fstatSync,
  ftruncateSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  rmSync,
  writeSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { basename, dirname } from 'node:path';
import type { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { assert } from '../../shared/assert.ts';
import { errnoOf, messageOf } from '../../shared/errors.ts';
import { isId } from '../../shared/ids.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { asVmUser, CLEAN_ENV, inJail, type Jail, type JailFiles, takeRuntimeDir } from './confinement.ts';
import { vmSockets } from './qemu-command.ts';
import { QmpClient } from './qmp-client.ts';

/**
 * A clock since this machine's boot, the same for all processes, never set, and running while the machine is suspended
 * (CLOCK_BOOTTIME, as /proc/uptime shows it, in hundredths of a second).
 */
export function bootMs(): number {
  return Math.round(Number.parseFloat(readFileSync('/proc/uptime', 'latin1')) * 1_000);
}

/** Identifies a boot of this machine. Times of {@link bootMs} are comparable only within one boot. */
export function bootId(): string {
  boot_id ??= readFileSync('/proc/sys/kernel/random/boot_id', 'latin1').trim();
  return boot_id;
}

let boot_id: string | undefined;

/**
 * Identifies a process by pid, start time and boot of the host, because pids are reused (proc(5): field 22 of
 * /proc/<pid>/stat, in clock ticks since boot; exec does not change it).
 */
export interface ProcessIdentity {
  readonly pid: number;
  /** Clock ticks since the host's boot. */
  readonly start_time: number;
  /** The host's boot. */
  readonly boot_id: string;
}

const STATE = 0;
const START_TIME = 19;

/** The identity of a living process; null: no process, or a zombie. */
export function identityOfProcess(pid: number): ProcessIdentity | null {
  const fields = statFields(pid);
  if (!fields || fields[STATE] === 'Z' || fields[STATE] === 'X') return null;
  return { pid, start_time: Number(fields[START_TIME]), boot_id: bootId() };
}

export function isSameProcess(one: ProcessIdentity, other: ProcessIdentity): boolean {
  return one.pid === other.pid && one.start_time === other.start_time && one.boot_id === other.boot_id;
}

export function isProcessAlive(identity: ProcessIdentity): boolean {
  const found = identityOfProcess(identity.pid);
  return found !== null && isSameProcess(found, identity);
}

/** Paused by SIGSTOP. */
export function isStopped(identity: ProcessIdentity): boolean {
  return isProcessAlive(identity) && statFields(identity.pid)?.[STATE] === 'T';
}

/** The process's user; null: it has ended. */
export function userOfProcess(identity: ProcessIdentity): number | null {
  const uid = /^Uid:\t(\d+)/m.exec(procFile(identity.pid, 'status') ?? '')?.[1];
  return uid !== undefined && isProcessAlive(identity) ? Number(uid) : null;
}

/** Signals the process. Returns false when it has ended. @throws EPERM */
export function killProcess(identity: ProcessIdentity, signal: NodeJS.Signals): boolean {
  if (!isProcessAlive(identity)) return false;
  try {
    return process.kill(identity.pid, signal);
  } catch (error) {
    if (errnoOf(error) === 'ESRCH') return false;
    throw error;
  }
}

/** Resolves to true once the process has ended, to false after `timeout_ms`. */
export async function waitForExit(identity: ProcessIdentity, timeout_ms: number): Promise<boolean> {
  const deadline = performance.now() + timeout_ms;
  for (let wait_ms = 1; isProcessAlive(identity); wait_ms = Math.min(50, wait_ms * 2)) {
    const left_ms = deadline - performance.now();
    if (left_ms <= 0) return false;
    await pause(Math.min(wait_ms, left_ms));
  }
  return true;
}

/** The arguments of a process, starting with its name. Empty: it has ended, or is a kernel thread. */
export function commandLineOf(pid: number): string[] {
  const text = procFile(pid, 'cmdline') ?? '';
  return text === '' ? [] : text.replace(/\0$/, '').split('\0');
}

export function allPids(): number[] {
  return readdirSync('/proc')
    .filter((name) => /^[1-9][0-9]*$/.test(name))
    .map(Number);
}

/** Fields of /proc/<pid>/stat from the state (field 3) on. The name before it may contain any character. */
function statFields(pid: number): string[] | null {
  const text = procFile(pid, 'stat');
  return text === null ? null : text.slice(text.lastIndexOf(')') + 2).split(' ');
}

/** null: the process has ended. */
function procFile(pid: number, name: string): string | null {
  try {
    return readFileSync(`/proc/${pid}/${name}`, 'utf8');
  } catch (error) {
    if (errnoOf(error) === 'ENOENT' || errnoOf(error) === 'ESRCH') return null;
    throw error;
  }
}

/** The file descriptor from which QEMU reads its memory. */
export const MEMORY_FD = 3;
/** The file descriptor to which bubblewrap writes QEMU's pid. QEMU does not inherit it. */
const INFO_FD = 4;
const LOG_TAIL_BYTES = 4_096;
const LOG_TAIL_LINES = 5;
/** The time from the end of the QMP connection to the end of the process, which first closes its images. */
const EXIT_GRACE_MS = 2_000;

export interface LaunchOptions {
  readonly qemu_binary: string;
  /** From qemuArguments. */
  readonly arguments: readonly string[];
  /** Absent: as the agent's user, which is not root. */
  readonly run_as?: { readonly uid: number; readonly gid: number };
  /** Needs `run_as`. The command line that opens QEMU's TAP device and runs `command` in an empty network namespace. */
  readonly onTap?: (command: readonly string[]) => string[];
  /** Needs `run_as`. Absent: no jail. */
  readonly jail?: { readonly jail: Jail; readonly files: JailFiles };
  readonly runtime_dir: string;
  /** The agent's file descriptor. QEMU gets it as {@link MEMORY_FD}. */
  readonly memory_fd?: number;
  /** QEMU's messages, truncated at the start. Limit it with {@link boundQemuLog}. */
  readonly log_path: string;
  /** Time limit until QMP replies. Default 15 s. */
  readonly timeout_ms?: number;
}

export interface LaunchedVm {
  readonly identity: ProcessIdentity;
  /** Connected. The VM is paused (`prelaunch`). */
  readonly qmp: QmpClient;
}

/** QEMU did not start. The message ends with QEMU's last messages. */
export class QemuLaunchError extends Error {
  override name = 'QemuLaunchError';
  readonly log_tail: readonly string[];

  constructor(message: string, log_tail: readonly string[], cause?: unknown) {
    super(log_tail.length > 0 ? `${message}: ${log_tail.join(' | ')}` : message, { cause });
    this.log_tail = log_tail;
  }
}

/**
 * Starts QEMU and connects to its monitor. Rejects with {@link QemuLaunchError}: a missing file, a port in use, a folder
 * without access for the VM's user, no monitor in time.
 */
export async function launchVm(options: LaunchOptions): Promise<LaunchedVm> {
  // The monitor of a predecessor in the same folder could reply before the new QEMU listens.
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
  } else endGroup(child);
  const reason = failure ?? (qmp instanceof QmpClient ? 'QEMU ended at once' : qmp);
  throw new QemuLaunchError(`QEMU did not start: ${reason}`, logTail(options.log_path));
}

function spawnQemu(
  { qemu_binary, run_as, jail, onTap, memory_fd, ...options }: LaunchOptions,
  log_fd: number,
) {
  assert((!jail && !onTap) || run_as, 'a jail or a TAP device takes a user');
  const qemu = [qemu_binary, ...options.arguments];
  const jailed = jail && run_as ? inJail({ ...jail, user: run_as, info_fd: INFO_FD }, qemu) : qemu;
  const as_user = onTap && run_as && !jail ? [...asVmUser(run_as), ...jailed] : jailed;
  const [file = '', ...words] = onTap ? onTap(as_user) : as_user;
  const stdio: StdioOptions = ['ignore', log_fd, log_fd];
  if (jail) stdio.push(memory_fd ?? 'ignore', 'pipe');
  else if (memory_fd !== undefined) stdio.push(memory_fd);
  return spawn(file, words, {
    detached: true,
    stdio,
    cwd: '/',
    env: CLEAN_ENV,
    ...(jail || onTap ? {} : run_as),
  });
}

/** Node has not reaped the child yet, so its pid is not reused. */
function childIdentity({ pid }: ChildProcess): ProcessIdentity | null {
  return pid === undefined ? null : identityOfProcess(pid);
}

/** Also what the child has started: bubblewrap's own child would wait for it for ever. */
function endGroup({ pid }: ChildProcess): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGKILL');
  } catch (error) {
    if (errnoOf(error) !== 'ESRCH') throw error;
  }
}

/** The identity of bubblewrap's process; null: none, or it has ended. */
async function jailedIdentity({ stdio }: ChildProcess, timeout_ms: number): Promise<ProcessIdentity | null> {
  const pipe = stdio[INFO_FD] as Readable;
  const late = setTimeout(() => pipe.destroy(), timeout_ms);
  try {
    const { 'child-pid': pid } = JSON.parse(await text(pipe)) as { 'child-pid': number };
    return identityOfProcess(pid);
  } catch {
    // bubblewrap has ended before. Exit code and log have the reason.
    return null;
  } finally {
    clearTimeout(late);
  }
}

/** Takes the socket folder from QEMU's user. Once the monitor replies, QEMU listens on all sockets. Returns a failure's reason. */
function closeOff({ runtime_dir, run_as }: LaunchOptions): string | undefined {
  try {
    if (run_as) takeRuntimeDir(runtime_dir, run_as.uid, Object.values(vmSockets(runtime_dir)));
    return undefined;
  } catch (error) {
    return messageOf(error);
  }
}

/** After this time without a greeting it reconnects: under load, one QEMU in thousands never greets the first connection. */
const GREETING_MS = 5_000;

/** The monitor, or the failure's reason. QEMU listens before it has read all options, and may still exit. */
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

/** The accept queue holds one or two connections, among them those of dead agents. */
const QUEUE_IS_FULL = 'EAGAIN';
const NOBODY_LISTENS = ['ENOENT', 'ECONNREFUSED'];

/**
 * Connects to the monitor of a QEMU that an earlier agent started. Returns the reason when nothing listens or it was silent
 * for `patience_ms`. @throws when QEMU may be healthy: it is paused, or the agent has a problem
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
      if (NOBODY_LISTENS.includes(code ?? '') || !isProcessAlive(identity)) return error;
      if (code !== undefined && code !== QUEUE_IS_FULL) throw error;
      if (performance.now() >= deadline) return error;
      await pause(backoffMs(attempt, 20, 500));
    }
  }
}

/** `exited`: the process has ended. `disconnected`: it lives, but the monitor connection has ended. */
export type VmEnd = 'exited' | 'disconnected';

/**
 * Calls `listener` once at the end, without delay: the kernel closes a dead QEMU's monitor socket at once, also when QEMU
 * is not a child. Returns the function that stops listening. Closing `qmp` counts as `disconnected`.
 */
export function onVmExit(
  identity: ProcessIdentity,
  qmp: QmpClient,
  listener: (end: VmEnd) => void,
): () => void {
  let listening = true;
  const stop = qmp.onClose(async (reason) => {
    const gone = reason.by_us ? !isProcessAlive(identity) : await waitForExit(identity, EXIT_GRACE_MS);
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
  /** From the kernel's command line; null: absent. */
  readonly vm_id: string | null;
  readonly runtime_dir: string;
}

/**
 * Every running QEMU (by its arguments) with a runtime folder below `runtime_root`; without a QEMU, what was to become one. A
 * bubblewrap whose agent ends before it has read the pid waits for ever, and holds the TAP device.
 */
export function findOrphans(runtime_root: string): FoundVm[] {
  assert(runtime_root.startsWith('/'), 'runtime_root must be absolute');
  const root = runtime_root.endsWith('/') ? runtime_root : `${runtime_root}/`;
  const [running, launching]: [FoundVm[], FoundVm[]] = [[], []];
  for (const pid of allPids()) {
    const identity = identityOfProcess(pid);
    const argv = commandLineOf(pid);
    const vm = identity && describeCommandLine(argv);
    if (!identity || !vm?.runtime_dir.startsWith(root) || !isProcessAlive(identity)) continue;
    (LAUNCHERS.includes(basename(argv[0] ?? '')) ? launching : running).push({ identity, ...vm });
  }
  const ran = new Set(running.map(({ runtime_dir }) => runtime_dir));
  return [...running, ...launching.filter(({ runtime_dir }) => !ran.has(runtime_dir))];
}

/** Programs that start QEMU, with QEMU's arguments after their own. */
const LAUNCHERS: readonly string[] = ['nsenter', 'perl', 'unshare', 'bwrap', 'setpriv'];

/** Parses the arguments of {@link qemuArguments}, also behind a launcher's; null: another program's. */
export function describeCommandLine(argv: readonly string[]): Omit<FoundVm, 'identity'> | null {
  const instance_id = valueAfter(argv, '-name', 'guest=');
  const chardev = valueAfter(argv, '-chardev', 'socket,id=qmp,path=');
  if (instance_id === null || !isId('inst', instance_id) || chardev === null) return null;
  const path = chardev.replace(/,server=on,wait=off$/, '').replaceAll(',,', ',');
  const vm_id = /(?:^| )berth\.vm=(\S+)/.exec(valueAfter(argv, '-append', '') ?? '')?.[1];
  return { instance_id, vm_id: vm_id && isId('vm', vm_id) ? vm_id : null, runtime_dir: dirname(path) };
}

/** The first value of `option` that starts with `prefix`, without the prefix. */
function valueAfter(argv: readonly string[], option: string, prefix: string): string | null {
  for (const [index, value] of argv.entries()) {
    if (argv[index - 1] === option && value.startsWith(prefix)) return value.slice(prefix.length);
  }
  return null;
}

/**
 * Truncates a log over `max_bytes` to its last half. Safe while QEMU appends to it. Call it regularly, because a guest can
 * make QEMU write messages.
 */
export function boundQemuLog(log_path: string, max_bytes: number): void {
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

/** QEMU's last messages without time stamps; empty: no log. */
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

/** A free port of 127.0.0.1. Another program may take it before QEMU does. */
export function freeLoopbackPort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once('error', reject);
    probe.listen({ host: '127.0.0.1', port: 0 }, () => {
      const address = probe.address();
      probe.close(() => resolve(address !== null && typeof address === 'object' ? address.port : 0));
    });
  });
}
