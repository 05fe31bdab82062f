/**
 * Until when this host may run its VMs, for every process that must know: `run/lease.json`, replaced whole. It needs no fsync: after
 * a power loss no VM runs, and a lease of another boot is over. Without the file there is no lease.
 */
import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { errnoOf } from '../../shared/errors.ts';
import { bootId, bootMs } from '../qemu/boot-clock.ts';

export interface Lease {
  readonly boot_id: string;
  /** On the boot clock. */
  readonly until_ms: number;
  /** The length that was promised to the control plane. */
  readonly lease_ms: number;
}

/** null: there is no lease. An unreadable lease is over. */
export function readLease(path: string): Lease | null {
  try {
    const { boot_id, until_ms, lease_ms } = JSON.parse(readFileSync(path, 'utf8')) as Partial<Lease>;
    const whole = typeof boot_id === 'string' && typeof until_ms === 'number' && typeof lease_ms === 'number';
    return whole ? { boot_id, until_ms, lease_ms } : OVER;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return null;
    return OVER;
  }
}

const OVER: Lease = { boot_id: '', until_ms: 0, lease_ms: 0 };

/** The remaining time; 0: it is over. */
export function leftMs({ boot_id, until_ms }: Pick<Lease, 'boot_id' | 'until_ms'>): number {
  return boot_id === bootId() ? Math.max(0, until_ms - bootMs()) : 0;
}

export function writeLease(path: string, until_ms: number, lease_ms: number): void {
  const lease: Lease = { boot_id: bootId(), until_ms, lease_ms };
  writeFileSync(`${path}.new`, JSON.stringify(lease), { mode: 0o600 });
  renameSync(`${path}.new`, path);
}

export function removeLease(path: string): void {
  rmSync(path, { force: true });
}
