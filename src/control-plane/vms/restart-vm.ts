import type { InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Principal } from '../identity/principal.ts';
import { type CallCheck, type CallResult, newestVmOf, requestChange } from './request-change.ts';
import { countReboots, updateVm } from './store.ts';

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
