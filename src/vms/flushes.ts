import type { FlushFailureCode } from '../agent-api/reasons.ts';
import type { FlushFailure, FlushReport, Reason } from '../agent-api/types.ts';
import { notify } from '../db/notify.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { getInstance, lockInstance } from '../instances/store.ts';
import { instanceView } from '../instances/view.ts';
import type { FlushId, HostId, InstanceId, VmId } from '../lib/ids.ts';
import { failFlushesOf, failRunningFlushes, findFlush, lockFlush, updateFlush } from './flush-store.ts';
import { findVm } from './store.ts';

/** What the host says of a queued flush. */
export async function recordFlush(
  db: Db,
  host_id: HostId,
  report: FlushReport,
): Promise<'accepted' | 'fenced'> {
  return transaction(db, async (tx) => {
    const found = await findFlush(tx, report.flush_id);
    // The instance first, as everywhere.
    if (found) await lockInstance(tx, found.instance_id);
    const row = await lockFlush(tx, report.flush_id);
    if (!row || row.host_id !== host_id || row.state === 'done' || row.state === 'failed') return 'fenced';
    // A host flushes a disk once at a time: another one of it that still runs was broken off.
    if (report.state === 'running') await breakOffOthers(tx, row.instance_id, report.flush_id);
    await updateFlush(tx, report);
    if (report.state === 'failed') await tellOfFailure(tx, row.instance_id, 'asked', report.error, host_id);
    await notify(tx, 'flush', report.flush_id);
    return 'accepted';
  });
}

/** An automatic flush has failed that went well, or was not made, the time before. */
export async function recordFlushFailure(
  db: Db,
  host_id: HostId,
  { vm_id, epoch, error }: FlushFailure,
): Promise<'accepted' | 'fenced'> {
  return transaction(db, async (tx) => {
    const vm = await findVm(tx, vm_id);
    if (vm?.host_id !== host_id || vm.epoch !== epoch) return 'fenced';
    await lockInstance(tx, vm.instance_id);
    await tellOfFailure(tx, vm.instance_id, 'automatic', error, host_id);
    return 'accepted';
  });
}

/** The instance is held. */
export async function tellOfFailure(
  tx: Tx,
  instance_id: InstanceId,
  cause: 'asked' | 'automatic' | 'final',
  { code, message }: Reason<FlushFailureCode>,
  actor: string,
): Promise<void> {
  const row = await getInstance(tx, instance_id);
  // Its deletion has been told; that its data is not kept is what was asked for.
  if (!row || row.deleting) return;
  await append(tx, {
    org_id: row.org_id,
    instance_id,
    type: 'disk.flush_failed',
    data: { instance: instanceView(row), error: { code, message }, cause },
    actor,
  });
}

async function breakOffOthers(tx: Tx, instance_id: InstanceId, id: FlushId): Promise<void> {
  const error = { code: 'interrupted', message: 'The host was interrupted.' } as const;
  for (const other of await failRunningFlushes(tx, instance_id, id, error)) await notify(tx, 'flush', other);
}

/** Ends the flushes of a VM that is gone: nobody will serve them. */
export async function failFlushes(tx: Tx, vm_id: VmId, message: string): Promise<void> {
  const gone = await failFlushesOf(tx, vm_id, { code: 'vm_gone', message });
  for (const id of gone) await notify(tx, 'flush', id);
}
