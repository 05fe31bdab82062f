/** Reads the CPU time and memory of processes from /proc (proc(5)). */
import { readdirSync, readFileSync } from 'node:fs';

/** USER_HZ, which is 100 on all common architectures. */
const TICKS_PER_S = 100;

/** CPU time of all its threads so far, in user and kernel mode. */
export function cpuSeconds(pid: number): number {
  const fields = statFields(pid);
  return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_S;
}

/** CPU time so far of a process and its children, also of those that have ended; but not of theirs. */
export function familySeconds(pid: number): number {
  const of_children = childrenOf(pid).reduce((sum, child) => sum + secondsIfAlive(child), 0);
  const fields = statFields(pid);
  const ended_s = (Number(fields[13]) + Number(fields[14])) / TICKS_PER_S;
  return of_children + cpuSeconds(pid) + ended_s;
}

/** 0 if it has ended: then its parent counts it. */
function secondsIfAlive(pid: number): number {
  try {
    return cpuSeconds(pid);
  } catch {
    return 0;
  }
}

function childrenOf(pid: number): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && isChild(name, pid))
    .map(Number);
}

function isChild(name: string, parent: number): boolean {
  try {
    return statFields(Number(name))[1] === String(parent);
  } catch {
    return false;
  }
}

/** What /proc/PID/stat has behind the name, which is in parentheses and may have spaces. */
function statFields(pid: number): readonly string[] {
  const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
  return stat.slice(stat.lastIndexOf(')') + 2).split(' ');
}

export function residentMib(pid: number): number {
  const [, kib] = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'latin1')) ?? [];
  return Number(kib) / 1024;
}

/** Memory of a process and its children; what they share counts once. */
export function familyMib(pid: number): number {
  return [pid, ...childrenOf(pid)].reduce((sum, each) => sum + proportionalMib(each), 0);
}

/** Shared pages divided by the processes that share them; 0 if the process has ended. */
function proportionalMib(pid: number): number {
  try {
    const [, kib] = /^Pss:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'latin1')) ?? [];
    return Number(kib ?? 0) / 1024;
  } catch {
    return 0;
  }
}
