/** CPU time and memory of a process, as Linux counts them (proc(5)). */
import { readFileSync } from 'node:fs';

/** USER_HZ, which is 100 on all common architectures. */
const TICKS_PER_S = 100;

/** CPU time of all its threads so far, in user and kernel mode. */
export function cpuSeconds(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
  // The second field is a name in parentheses, which may have spaces.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_S;
}

export function residentMib(pid: number): number {
  const [, kib] = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'latin1')) ?? [];
  return Number(kib) / 1024;
}
