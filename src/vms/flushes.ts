import type { FlushFailureCode } from '../agent-api/reasons.ts';
import type { FlushFailure, FlushReceipt, FlushReport, Reason } from '../agent-api/types.ts';
import { notify } from '../db/notify.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { getInstance, type InstanceRow, lockInstance } from '../instances/store.ts';
import { instanceView } from '../instances/view.ts';
import { rfc3339 } from '../lib/clock.ts';
import type { FlushId, HostId, InstanceId, VmId } from '../lib/ids.ts';
import {
  endFlushesOf,
  failRunningFlushes,
  findFlush,
  lockFlush,
  noteDuration,
  updateFlush,
} from './flush-store.ts';
import { findVm, newestVm } from './store.ts';

/** Records a host's report of a requested flush. */
export async function recordFlush(
  db: Db,
  host_id: HostId,
  report: FlushReport,
): Promise<'accepted' | 'fenced'> {
  return transaction(db, async (tx) => {
    const found = await findFlush(tx, report.flush_id);
    // Lock order: the instance before its flushes.
    if (found) await lockInstance(tx, found.instance_id);
    const row = await lockFlush(tx, report.flush_id);
    if (!row || row.host_id !== host_id || row.state === 'done' || row.state === 'failed') return 'fenced';
    // A host runs one flush of a disk at a time: others marked as running were interrupted.
    if (report.state === 'running') await failInterrupted(tx, row.instance_id, report.flush_id);
    await updateFlush(tx, report);
    if (report.state === 'done' && report.receipt.segments > 0)
      await noteDuration(tx, row.instance_id, report.receipt.generation, report.receipt.duration_ms);
    if (report.state === 'failed')
      await announceFlushFailure(tx, row.instance_id, 'asked', report.error, row.requested_by);
    await notify(tx, 'flush', report.flush_id);
    return 'accepted';
  });
}

/** Records the first failure of automatic flushes since one succeeded. */
export async function recordFlushFailure(
  db: Db,
  host_id: HostId,
  { vm_id, epoch, error }: FlushFailure,
): Promise<'accepted' | 'fenced'> {
  return transaction(db, async (tx) => {
    const vm = await findVm(tx, vm_id);
    if (vm?.host_id !== host_id || vm.epoch !== epoch) return 'fenced';
    await lockInstance(tx, vm.instance_id);
    if ((await newestVm(tx, vm.instance_id))?.id !== vm_id) return 'fenced';
    await announceFlushFailure(tx, vm.instance_id, 'automatic', error, host_id);
    return 'accepted';
  });
}

/** Appends `disk.flush_failed`. The caller has locked the instance. @param actor who asked for the flush, or the host */
export async function announceFlushFailure(
  tx: Tx,
  instance_id: InstanceId,
  cause: 'asked' | 'automatic' | 'final',
  { code, message }: Reason<FlushFailureCode>,
  actor: string,
): Promise<void> {
  const row = await getInstance(tx, instance_id);
  // A deletion gives up the data on purpose.
  if (!row || row.deleting) return;
  await append(tx, {
    org_id: row.org_id,
    instance_id,
    type: 'disk.flush_failed',
    data: { instance: instanceView(row), error: { code, message }, cause },
    actor,
  });
}

async function failInterrupted(tx: Tx, instance_id: InstanceId, id: FlushId): Promise<void> {
  const error = { code: 'interrupted', message: 'The host was interrupted.' } as const;
  for (const other of await failRunningFlushes(tx, instance_id, id, error)) await notify(tx, 'flush', other);
}

/** Fails the flushes of a VM that no longer runs. */
export async function failFlushes(tx: Tx, vm_id: VmId, message: string): Promise<void> {
  const error = { code: 'vm_gone', message } as const;
  for (const id of await endFlushesOf(tx, vm_id, { error })) await notify(tx, 'flush', id);
}

/** Completes flushes that had not begun when the VM was stopped or suspended: everything is durable, as their callers wanted. */
export async function answerFlushes(
  tx: Tx,
  vm_id: VmId,
  row: Pick<InstanceRow, 'generation' | 'durable_at'>,
): Promise<void> {
  const receipt = unchangedReceipt(row);
  for (const id of await endFlushesOf(tx, vm_id, { receipt })) await notify(tx, 'flush', id);
}

/** A receipt of the current generation, with nothing uploaded. */
export function unchangedReceipt(row: Pick<InstanceRow, 'generation' | 'durable_at'>): FlushReceipt {
  return {
    generation: row.generation,
    durable_at: row.durable_at === null ? null : rfc3339(row.durable_at),
    dirty_bytes: 0,
    uploaded_bytes: 0,
    segments: 0,
    duration_ms: 0,
    consistency: 'offline',
  };
}
