/** Changes that need a stopped VM. A VM that is on is stopped for them, and started again if it ran. */
import type { Instance, VmState } from '../../../client/src/berth.ts';
import { berth, call } from '../api.ts';
import { putVm } from '../live/instances.ts';

/** The states that end in `running` by themselves. */
const RUNS: readonly VmState[] = ['starting', 'running', 'restarting'];

/** What happens to the VM around such a change, for its dialog; null for a stopped VM. */
export function stopNotice({ name, vm }: Pick<Instance, 'name' | 'vm'>): string | null {
  if (vm.state === 'stopped') return null;
  if (RUNS.includes(vm.state))
    return `${name} is ${vm.state}. It is stopped first, with a flush, and started again afterwards. Its processes end.`;
  const loses = vm.state === 'suspended' ? ', and its saved memory is dropped' : '';
  return `${name} is ${vm.state}. It is stopped first${loses}, and stays stopped.`;
}

export async function whileStopped<T>(
  { id, vm: { state } }: Pick<Instance, 'id' | 'vm'>,
  work: () => Promise<T>,
): Promise<T> {
  if (state === 'stopped') return work();
  const path = { id };
  putVm(await call('stopVm', { path }));
  putVm(await berth.instances.waitFor(id, 'stopped'));
  try {
    return await work();
  } finally {
    // Also after a failure: what ran before must run again.
    if (RUNS.includes(state)) putVm(await call('startVm', { path }));
  }
}
