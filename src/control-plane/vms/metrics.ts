/** A VM's resource use, now and over the last hour, from its host. */
import type { MetricsResult, VmSample } from '../../protocol/host-calls.ts';
import type { HostCalls } from '../fleet/host-calls.ts';
import type { InstanceRow } from '../instances/store.ts';
import { requireMachine } from './console.ts';
import { placeOf } from './exec-command.ts';

/** Longer than a host that stands still is waited for, which gives a better reason. */
const WITHIN_MS = 30_000;

export interface MetricsPoint extends VmSample {
  /** Of all its cpus, 0 to 1, since the previous sample; null for the first. */
  readonly cpu_share: number | null;
}
export interface VmMetrics {
  readonly now: MetricsPoint;
  readonly interval_seconds: number;
  readonly samples: readonly MetricsPoint[];
}

/** @throws AppError CONFLICT, VM_NOT_RUNNING, UNAVAILABLE */
export async function readMetrics(
  calls: HostCalls,
  row: InstanceRow,
  signal: AbortSignal,
): Promise<VmMetrics> {
  requireMachine(row);
  const { host_id, instance_id, vm_id } = placeOf(row);
  const call = { kind: 'metrics', instance_id, vm_id } as const;
  const { now, samples, interval_seconds } = await calls.ask<MetricsResult>(host_id, call, WITHIN_MS, signal);
  const points = withShares([...samples, now], row.cpus);
  return { now: points.at(-1) as MetricsPoint, interval_seconds, samples: points.slice(0, -1) };
}

/** QEMU also emulates devices, so the process may exceed its virtual cpus: the share is capped at 1. */
export function withShares(samples: readonly VmSample[], cpus: number): MetricsPoint[] {
  return samples.map((sample, index) => {
    const before = samples[index - 1];
    const elapsed_s = before === undefined ? 0 : (Date.parse(sample.at) - Date.parse(before.at)) / 1000;
    if (before === undefined || elapsed_s <= 0) return { ...sample, cpu_share: null };
    const share = (sample.cpu_seconds - before.cpu_seconds) / elapsed_s / cpus;
    return { ...sample, cpu_share: Math.round(Math.min(1, Math.max(0, share)) * 1000) / 1000 };
  });
}
