import type { FlushFailureCode } from '../../protocol/reasons.ts';
import type { FlushFailure, FlushReport, FlushResult, Reason } from '../../protocol/types.ts';
import type { FlushId, HostId, InstanceId, VmId } from '../../shared/ids.ts';
import { notify } from '../db/notify.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { SavedHead } from '../instances/saved-head-store.ts';
import { getInstance, lockInstance } from '../instances/store.ts';
import { instanceView } from '../instances/view.ts';
import { receiptOf } from './flush-receipt.ts';
import {
  endFlushesOf,
  type FlushState,
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
    const now = report.state === 'done' ? await judgeResult(tx, row.instance_id, report.result) : report;
    await updateFlush(tx, report.flush_id, now);
    if (now.state === 'done' && now.receipt.segments > 0)
      await noteDuration(tx, row.instance_id, now.receipt.generation, now.receipt.duration_ms);
    if (now.state === 'failed')
      await announceFlushFailure(tx, row.instance_id, 'asked', now.error, row.requested_by);
    await notify(tx, 'flush', report.flush_id);
    return 'accepted';
  });
}

/** A host may be confused, and the database may have lost the commit since: without it the writes are not saved. */
async function judgeResult(tx: Tx, instance_id: InstanceId, result: FlushResult): Promise<FlushState> {
  const head = await SavedHead.read(tx, instance_id);
  if (head.commit_id === result.commit_id) return { state: 'done', receipt: receiptOf(head, result) };
  const message = `Its host named a commit that is not the disk's present generation ${head.generation}.`;
  return { state: 'failed', error: { code: 'flush_failed', message } };
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
export async function answerFlushes(tx: Tx, vm_id: VmId, head: SavedHead): Promise<void> {
  const receipt = receiptOf(head);
  for (const id of await endFlushesOf(tx, vm_id, { receipt })) await notify(tx, 'flush', id);
}
