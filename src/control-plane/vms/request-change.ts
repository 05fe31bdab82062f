/**
 * Does what the calls start, stop, restart and suspend have in common: locks the instance, checks the state table,
 * writes the wanted state in the caller's transaction, and wakes the host, whose agent does the rest.
 */
import type { VmReasonCode } from '../../protocol/types.ts';
import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import type { InstanceId, VmId } from '../../shared/ids.ts';
import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { lockInstanceOf, refuseDeleting } from '../instances/change-instance.ts';
import { findInstance, type InstanceRow } from '../instances/store.ts';
import { type CallRule, remedy, ruleFor, type VmCall, type VmState } from './model.ts';
import { markUsed, updateVm, type VmReason } from './store.ts';

/** Gets the instance as found under the lock; throws to refuse the call. */
export type CallCheck = (found: InstanceRow) => void;

export interface CallResult {
  /** 202 when work has begun, 200 when there is nothing to do. */
  readonly status: 200 | 202;
  readonly row: InstanceRow;
}

/** The rule for a call in the instance's state. @throws AppError CONFLICT, VM_NOT_RUNNING naming state and remedy */
export function ruleOrThrow(
  row: InstanceRow,
  call: VmCall,
): Exclude<CallRule, 'CONFLICT' | 'VM_NOT_RUNNING'> {
  refuseDeleting(row);
  const state: VmState = row.state ?? 'stopped';
  const rule = ruleFor(state, call);
  if (rule === 'CONFLICT' || rule === 'VM_NOT_RUNNING')
    throw new AppError(rule, { message: remedy(state, call) });
  return rule;
}

/** The newest VM of an instance that has one. */
export function newestVmOf(row: InstanceRow): { id: VmId; version: number; state: VmState } {
  return {
    id: present(row.vm_id as VmId | null, 'vm id'),
    version: present(row.vm_version, 'vm version'),
    state: present(row.state, 'vm state'),
  };
}

export async function requestChange(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  call: VmCall,
  check: CallCheck,
  change: (row: InstanceRow, reason: (code: VmReasonCode, message: string) => VmReason) => Promise<unknown>,
): Promise<CallResult> {
  const row = await lockInstanceOf(tx, principal, id);
  check(row);
  const rule = ruleOrThrow(row, call);
  await markUsed(tx, id);
  const actor = actorOf(principal);
  if (rule === 'already') return { status: 200, row: call === 'stop' ? await stay(tx, row, actor) : row };
  await change(row, (code, message) => ({ code, message, actor }));
  const after = present(await findInstance(tx, principal.org_id, id), 'instance after its change');
  await notifyChange(tx, id, present(after.host_id, 'host of a VM'));
  return { status: 202, row: after };
}

/** A stopped VM that was to continue on another host stays stopped. */
async function stay(tx: Tx, row: InstanceRow, actor: string): Promise<InstanceRow> {
  if (row.move === null) return row;
  const reason = { code: 'stop_requested', message: 'A stop was requested.', actor } as const;
  await updateVm(tx, newestVmOf(row), { state: 'stopped', reason });
  await notify(tx, 'instance', row.id);
  await notify(tx, 'routes', row.id);
  return present(await findInstance(tx, row.org_id, row.id), 'instance after its change');
}

/** Wakes the host, those who wait for the instance, and the ingress: a stop removes the route's target at once. */
export async function notifyChange(tx: Tx, id: InstanceId, host_id: string): Promise<void> {
  await notify(tx, 'host', host_id);
  await notify(tx, 'instance', id);
  await notify(tx, 'routes', id);
}
