import type { InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Principal } from '../identity/principal.ts';
import { type CallCheck, type CallResult, newestVmOf, requestChange } from './request-change.ts';
import { updateVm } from './store.ts';

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
