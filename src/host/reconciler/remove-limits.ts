import type { InstanceId } from '../../shared/ids.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import type { HostContext } from '../host-context.ts';
import { removeLimits } from '../qemu/confinement.ts';

const TRIES = 10;

/** Removes a VM's control group. A dead process stays in it until it is reaped, which may take a moment. */
export async function removeLimitsOf(
  { cgroups, log }: Pick<HostContext, 'cgroups' | 'log'>,
  instance_id: InstanceId,
): Promise<void> {
  for (let attempt = 0; attempt < TRIES; attempt++) {
    const problem = removeLimits(cgroups, instance_id);
    if (problem === null) return;
    if (attempt + 1 === TRIES) log.warn({ problem }, 'a control group could not be removed');
    await pause(backoffMs(attempt, 10, 200));
  }
}
