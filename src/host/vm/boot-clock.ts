/**
 * The clock of leases: since this machine's boot, the same for all its processes, never set, and going on while the
 * machine is suspended (CLOCK_BOOTTIME, as /proc/uptime has it, in hundredths of a second).
 */
import { readFileSync } from 'node:fs';

export function bootMs(): number {
  return Math.round(Number.parseFloat(readFileSync('/proc/uptime', 'latin1')) * 1_000);
}

/** Tells one boot of this machine from another: times of {@link bootMs} mean something within it alone. */
export function bootId(): string {
  boot_id ??= readFileSync('/proc/sys/kernel/random/boot_id', 'latin1').trim();
  return boot_id;
}

/** A process is of one boot. */
let boot_id: string | undefined;
