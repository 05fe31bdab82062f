/**
 * Identifies a process by pid, start time and boot of the host, because pids are reused (proc(5): field 22 of
 * /proc/<pid>/stat, in clock ticks since boot; exec does not change it).
 * Invariant: no other process with the same pid is signalled or taken for alive.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { errnoOf } from '../../shared/errors.ts';
import { pause } from '../../shared/retry.ts';
import { bootId } from './boot-clock.ts';

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
export function identityOf(pid: number): ProcessIdentity | null {
  const fields = statFields(pid);
  if (!fields || fields[STATE] === 'Z' || fields[STATE] === 'X') return null;
  return { pid, start_time: Number(fields[START_TIME]), boot_id: bootId() };
}

export function isSameProcess(one: ProcessIdentity, other: ProcessIdentity): boolean {
  return one.pid === other.pid && one.start_time === other.start_time && one.boot_id === other.boot_id;
}

export function isAlive(identity: ProcessIdentity): boolean {
  const found = identityOf(identity.pid);
  return found !== null && isSameProcess(found, identity);
}

/** Paused by SIGSTOP. */
export function isStopped(identity: ProcessIdentity): boolean {
  return isAlive(identity) && statFields(identity.pid)?.[STATE] === 'T';
}

/** The process's user; null: it has ended. */
export function userOf(identity: ProcessIdentity): number | null {
  const uid = /^Uid:\t(\d+)/m.exec(procFile(identity.pid, 'status') ?? '')?.[1];
  return uid !== undefined && isAlive(identity) ? Number(uid) : null;
}

/** Signals the process. Returns false when it has ended. @throws EPERM */
export function killProcess(identity: ProcessIdentity, signal: NodeJS.Signals): boolean {
  if (!isAlive(identity)) return false;
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
  for (let wait_ms = 1; isAlive(identity); wait_ms = Math.min(50, wait_ms * 2)) {
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
