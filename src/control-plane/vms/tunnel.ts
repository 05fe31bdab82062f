/** Finds a running VM for the ingress, which reaches it through its host's agent. */

import type { HostId, InstanceId, VmId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { newestVm } from './store.ts';

/** Null when it is not running. */
export async function runningPlace(
  tx: Tx,
  instance_id: InstanceId,
): Promise<{ host_id: HostId; vm_id: VmId } | null> {
  const vm = await newestVm(tx, instance_id);
  if (!vm || (vm.state !== 'running' && vm.state !== 'restarting')) return null;
  return { host_id: vm.host_id, vm_id: vm.id };
}
