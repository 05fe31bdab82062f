/**
 * The resource use of one VM: counters since its process began, and current levels. Most are measured on the host. The others
 * come from the guest's agent, and are null while it does not answer.
 */
import { readFile } from 'node:fs/promises';
import type { VmSample } from '../../protocol/host-calls.ts';
import { rfc3339 } from '../../shared/clock.ts';
import type { GuestAgent } from '../guest/guest-agent.ts';
import { memoryUse, networkUse } from '../guest/guest-use.ts';
import type { Machine } from '../machine/machine.ts';

/** sysconf(_SC_CLK_TCK) is 100 on every Linux of x86-64. */
const TICKS_A_SECOND = 100;
const PAGE_BYTES = 4096;
/** Short: a flush's freeze may queue behind it. */
const GUEST_MS = 1_000;

/** `guest`: also ask the guest. Rejects when the process or its monitor is gone. */
export async function measureVm(machine: Machine, guest: boolean): Promise<VmSample> {
  const { pid } = machine.record.identity;
  const [stat, statm, disk, inside] = await Promise.all([
    readFile(`/proc/${pid}/stat`, 'latin1'),
    readFile(`/proc/${pid}/statm`, 'latin1'),
    machine.disk.counters(),
    guest ? askGuest(machine.agent).catch(() => null) : null,
  ]);
  return {
    at: rfc3339(new Date()),
    cpu_seconds: cpuSeconds(stat),
    memory: {
      host_bytes: Number(statm.split(' ')[1]) * PAGE_BYTES,
      used_bytes: inside?.memory.used_bytes ?? null,
      total_bytes: inside?.memory.total_bytes ?? null,
    },
    disk,
    network: inside?.network ?? { received_bytes: null, sent_bytes: null },
  };
}

/** utime and stime of proc(5), fields 14 and 15. The process name before them may contain anything. */
function cpuSeconds(stat: string): number {
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return (Number(fields[11]) + Number(fields[12])) / TICKS_A_SECOND;
}

async function askGuest(agent: GuestAgent) {
  const timeout = { timeout_ms: GUEST_MS };
  return { network: await networkUse(agent, timeout), memory: await memoryUse(agent, timeout) };
}
