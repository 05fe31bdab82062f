/** Stops, suspends and restarts VMs at a caller's request, and stops VMs that are idle. */
import { present } from '../../shared/assert.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { inWork } from '../../shared/tracing.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import type { Principal } from '../identity/principal.ts';
import { getInstance, lockInstance } from '../instances/store.ts';
import { eachInTurn } from '../tasks/run-tasks.ts';
import { listIdle } from './activity-store.ts';
import { hasMemory, orphanMemory } from './memory-store.ts';
import {
  type CallCheck,
  type CallResult,
  newestVmOf,
  notifyChange,
  requestChange,
} from './request-change.ts';
import { countReboots, reasonOf, updateVm } from './store.ts';

/** Requests guest shutdown (not with `force`), final flush and the VM's end, and drops saved memory; 200 if it is stopped already. */
export function stopVm(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  check: CallCheck,
  force: boolean,
): Promise<CallResult> {
  return requestChange(tx, principal, id, 'stop', check, async (row, reason) => {
    const vm = newestVmOf(row);
    const drops_memory = await hasMemory(tx, vm.id);
    const requested = reason(
      'stop_requested',
      `${force ? 'A stop without the guest was requested.' : 'A stop was requested.'}${drops_memory ? ' Its saved memory is dropped.' : ''}`,
    );
    await orphanMemory(tx, vm.id);
    await updateVm(tx, vm, {
      state: 'stopping',
      desired: 'stopped',
      ...(force ? { force: true } : {}),
      // A repeated stop must not hide why the final flush cannot end.
      reason: row.reason_code === 'flush_pending' ? reasonOf(row) : requested,
    });
  });
}

/** Stops, as `system`, a VM that has been idle for its timeout. False when it was used meanwhile. */
export async function stopIdleVm(tx: Tx, id: InstanceId): Promise<boolean> {
  await lockInstance(tx, id);
  const row = await getInstance(tx, id);
  if (row?.state !== 'running' || !(await listIdle(tx)).includes(id)) return false;
  const message = `The VM was idle for ${row.idle_timeout_seconds} s.`;
  await updateVm(tx, newestVmOf(row), {
    state: 'stopping',
    desired: 'stopped',
    reason: { code: 'idle', message, actor: 'system' },
  });
  await notifyChange(tx, id, present(row.host_id, 'host of a VM'));
  return true;
}

/** Stops, with their flush, the VMs that were not used for their `idle_timeout_seconds`. */
export async function stopIdle(db: Db, log: Log): Promise<void> {
  await eachInTurn(await listIdle(db), (id) => {
    const attributes = { 'berth.instance_id': id };
    return inWork({ name: 'task stop idle', attributes, context: null }, async () => {
      const stopped = await transaction(db, (tx) => stopIdleVm(tx, id));
      if (stopped) log.info({ instance_id: id }, 'idle: the VM is stopped');
    });
  });
}

/** Saves memory and disk together in the object store; the next start continues from them. */
export function suspendVm(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  check: CallCheck,
): Promise<CallResult> {
  return requestChange(tx, principal, id, 'suspend', check, async (row, reason) => {
    await updateVm(tx, newestVmOf(row), {
      state: 'suspending',
      desired: 'suspended',
      reason: reason('suspend_requested', 'A suspend was requested.'),
    });
  });
}

/** Soft reboot: the same VM and disk, nothing flushed. */
export function restartVm(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  check: CallCheck,
): Promise<CallResult> {
  return requestChange(tx, principal, id, 'restart', check, async (row, reason) => {
    const vm = newestVmOf(row);
    await updateVm(tx, vm, {
      state: 'restarting',
      reboots: (await countReboots(tx, vm.id)) + 1,
      reason: reason('restart_requested', 'A restart was requested.'),
    });
  });
}
