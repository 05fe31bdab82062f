/**
 * A clock since this machine's boot, the same for all processes, never set, and running while the machine is suspended
 * (CLOCK_BOOTTIME, as /proc/uptime shows it, in hundredths of a second).
 */
import { readFileSync } from 'node:fs';

export function bootMs(): number {
  return Math.round(Number.parseFloat(readFileSync('/proc/uptime', 'latin1')) * 1_000);
}

/** Identifies a boot of this machine. Times of {@link bootMs} are comparable only within one boot. */
export function bootId(): string {
  boot_id ??= readFileSync('/proc/sys/kernel/random/boot_id', 'latin1').trim();
  return boot_id;
}

let boot_id: string | undefined;
