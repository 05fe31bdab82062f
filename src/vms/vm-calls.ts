/**
 * The calls on an instance's VM: each validates against the state table, writes the intent and its event in
 * the caller's transaction under the instance's lock, and wakes the host. What follows is the agent's to do.
 */

import type { WakeResponse } from '../agent-api/ingress-types.ts';
import type { VmReasonCode } from '../agent-api/reasons.ts';
import { actorOf, type Principal } from '../auth/principal.ts';
import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';
import { placeVm } from '../hosts/place.ts';
import { currentImage } from '../images/store.ts';
import { findInstance, getInstance, type InstanceRow, lockInstance } from '../instances/store.ts';
import { present } from '../lib/assert.ts';
import { AppError } from '../lib/errors.ts';
import { type HostId, type InstanceId, newId, type VmId } from '../lib/ids.ts';
import type { QuotaLimits } from '../lib/quotas.ts';
import { checkQuota } from '../orgs/quotas.ts';
import { listIdle } from './activity-store.ts';
import { failFlushes } from './flushes.ts';
import { handMemoryOn } from './memory-store.ts';
import { type CallRule, remedy, ruleFor, type VmCall, type VmState } from './model.ts';
import { beginEpoch, countReboots, insertVm, markUsed, reasonOf, updateVm, type VmReason } from './store.ts';

/** Looks at the instance as the call found it, under the lock; throws to refuse. */
export type CallCheck = (found: InstanceRow) => void;

export interface CallResult {
  /** 202 when work was begun, 200 when nothing was to be done. */
  readonly status: 200 | 202;
  readonly row: InstanceRow;
}

/** The instance of the caller's organisation, locked until the transaction's end. @throws AppError NOT_FOUND */
export async function lockedInstance(tx: Tx, principal: Principal, id: InstanceId): Promise<InstanceRow> {
  await lockInstance(tx, id);
  const row = await findInstance(tx, principal.org_id, id);
  if (!row) throw new AppError('NOT_FOUND');
  return row;
}

/** The rule for a call in the instance's state. @throws AppError CONFLICT, VM_NOT_RUNNING naming state and remedy */
export function ruleOrRefuse(
  row: InstanceRow,
  call: VmCall,
): Exclude<CallRule, 'CONFLICT' | 'VM_NOT_RUNNING'> {
  if (row.deleting) throw new AppError('CONFLICT', { message: 'The instance is being deleted.' });
  const state: VmState = row.state ?? 'stopped';
  const rule = ruleFor(state, call);
  if (rule === 'CONFLICT' || rule === 'VM_NOT_RUNNING')
    throw new AppError(rule, { message: remedy(state, call) });
  return rule;
}

function vmOf(row: InstanceRow): { id: VmId; version: number; state: VmState } {
  return {
    id: present(row.vm_id as VmId | null, 'vm id'),
    version: present(row.vm_version, 'vm version'),
    state: present(row.state, 'vm state'),
  };
}

async function call(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  kind: VmCall,
  check: CallCheck,
  act: (row: InstanceRow, reason: (code: VmReasonCode, message: string) => VmReason) => Promise<unknown>,
): Promise<CallResult> {
  const row = await lockedInstance(tx, principal, id);
  check(row);
  const rule = ruleOrRefuse(row, kind);
  await markUsed(tx, id);
  if (rule === 'already') return { status: 200, row };
  const actor = actorOf(principal);
  await act(row, (code, message) => ({ code, message, actor }));
  const after = present(await findInstance(tx, principal.org_id, id), 'instance after its change');
  await notify(tx, 'host', present(after.host_id, 'host of a VM'));
  await notify(tx, 'instance', id);
  // A stop takes the target away, at once: connections that come from here on wait for the next boot, or are closed.
  await notify(tx, 'routes');
  return { status: 202, row: after };
}

/** Starts a new boot, on the host that fits; 200 if one is starting or running already. */
export function startVm(
  tx: Tx,
  quotas: QuotaLimits,
  principal: Principal,
  id: InstanceId,
  check: CallCheck,
): Promise<CallResult> {
  return call(tx, principal, id, 'start', check, (row, reason) =>
    insertBoot(tx, quotas, row, reason('start_requested', 'A start was asked for.')),
  );
}

/**
 * Starts the VM because a connection waits at its port: under the same rules, as `system`.
 * @throws AppError QUOTA_EXCEEDED, UNAVAILABLE, CONFLICT
 */
export async function wakeVm(tx: Tx, quotas: QuotaLimits, id: InstanceId): Promise<WakeResponse> {
  await lockInstance(tx, id);
  const row = await getInstance(tx, id);
  if (!row || row.deleting) return { outcome: 'refused', why: 'there is no such instance' };
  if (!row.wake_on_connect) return { outcome: 'refused', why: 'wake_on_connect is off' };
  const state = row.state ?? 'stopped';
  if (state === 'failed') return { outcome: 'refused', why: 'the VM has failed' };
  if (ruleFor(state, 'start') !== 'accepted') return { outcome: 'coming' };
  const message = 'A connection came to its SSH port.';
  const host_id = await insertBoot(tx, quotas, row, { code: 'woken', message, actor: 'system' });
  await notify(tx, 'host', host_id);
  await notify(tx, 'instance', id);
  return { outcome: 'coming' };
}

/** The instance is locked. */
async function insertBoot(tx: Tx, quotas: QuotaLimits, row: InstanceRow, reason: VmReason): Promise<HostId> {
  await checkQuota(tx, quotas, row.org_id, { cpus: row.cpus, memory_mib: row.memory_mib });
  const image = await currentImage(tx, row.image);
  const last = { id: row.host_id, unsaved: row.state === 'failed' };
  const host = await placeVm(tx, { ...row, image: image ? null : row.image }, last);
  const epoch = row.disk_epoch + 1;
  // What a disk is a delta of is decided before its first boot, and never again.
  const first = row.boot === null && row.disk_image_version === null;
  if (first && image && image.size_bytes > row.disk_gib * 2 ** 30) {
    const least_gib = Math.ceil(image.size_bytes / 2 ** 30);
    const message = `The image "${row.image}" takes a disk of ${least_gib} GiB by now. Set disk_gib to that first.`;
    throw new AppError('CONFLICT', { message });
  }
  const head = await beginEpoch(tx, row.id, epoch, first && image ? image.version : null);
  const id = newId('vm');
  await insertVm(tx, {
    id,
    instance_id: row.id,
    boot: (row.boot ?? 0) + 1,
    epoch,
    host_id: host.id,
    head,
    reason,
  });
  if (row.state === null) return host.id;
  const before = vmOf(row);
  // Taken in this very transaction: no other boot can ever go on from it.
  if (before.state === 'suspended') await handMemoryOn(tx, before.id, id);
  // Of a failed one: its host is not asked for them any more, and who asks from here on must not wait for them.
  await failFlushes(tx, before.id, 'The VM was started again.');
  return host.id;
}

/** Asks for guest shutdown (not with `force`), final flush and the VM's end; 200 if stopped already. */
export function stopVm(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  check: CallCheck,
  force: boolean,
): Promise<CallResult> {
  return call(tx, principal, id, 'stop', check, async (row, reason) => {
    const asked = reason(
      'stop_requested',
      force ? 'A stop without the guest was asked for.' : 'A stop was asked for.',
    );
    await updateVm(tx, vmOf(row), {
      state: 'stopping',
      desired: 'stopped',
      ...(force ? { force: true } : {}),
      // A final flush that waits is told of once: what it waits for stays the reason.
      reason: row.reason_code === 'flush_pending' ? reasonOf(row) : asked,
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
  return call(tx, principal, id, 'restart', check, async (row, reason) => {
    const vm = vmOf(row);
    await updateVm(tx, vm, {
      state: 'restarting',
      reboots: (await countReboots(tx, vm.id)) + 1,
      reason: reason('restart_requested', 'A restart was asked for.'),
    });
  });
}

/** Memory and disk into object storage, together; a start goes on from there. */
export function suspendVm(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  check: CallCheck,
): Promise<CallResult> {
  return call(tx, principal, id, 'suspend', check, async (row, reason) => {
    await updateVm(tx, vmOf(row), {
      state: 'suspending',
      desired: 'suspended',
      reason: reason('suspend_requested', 'A suspend was asked for.'),
    });
  });
}

/** Stops, as `system`, a VM that nobody has used for its idle timeout. False when it was used after all. */
export async function stopIdleVm(tx: Tx, id: InstanceId): Promise<boolean> {
  await lockInstance(tx, id);
  const row = await getInstance(tx, id);
  if (row?.state !== 'running' || !(await listIdle(tx)).includes(id)) return false;
  const message = `Nobody used the VM for ${row.idle_timeout_seconds} s.`;
  await updateVm(tx, vmOf(row), {
    state: 'stopping',
    desired: 'stopped',
    reason: { code: 'idle', message, actor: 'system' },
  });
  await notify(tx, 'host', present(row.host_id, 'host of a VM'));
  await notify(tx, 'instance', id);
  await notify(tx, 'routes');
  return true;
}
