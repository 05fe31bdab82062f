/**
 * Changes an instance without overwriting what somebody else has changed meanwhile.
 *
 * - `changeNow` computes a change from the instance's current values.
 * - `useInstanceForm` refuses to replace a value that differs from the one that the form showed.
 * - `whileStopped` stops the VM for changes that need that, and starts it again if it ran.
 */
import { useRef, useState } from 'preact/hooks';
import type { ChangeInstanceRequest, Instance, VmState } from '../../../client/src/generated.ts';
import { berth, call } from '../api.ts';
import { putInstance, putVm } from '../live/instances.ts';
import { readThenChange, requireSeen } from '../use-action.ts';

/** Changes an instance by what it is now, also if somebody else changes it meanwhile. */
export function changeNow(id: string, changeOf: (now: Instance) => ChangeInstanceRequest): Promise<Instance> {
  const path = { id };
  return readThenChange(
    (options) => call('getInstance', { path }, options),
    (now, options) => call('changeInstance', { path, body: changeOf(now) }, options),
  );
}

interface InstanceForm {
  /** What the form shows: the live instance until an edit, then the instance as it was. */
  readonly shown: Instance;
  readonly onEdited: (is_edited: boolean) => void;
  /** @throws Error if somebody else has changed what this replaces; then `shown` is the present instance */
  readonly change: (body: ChangeInstanceRequest) => Promise<Instance>;
}

export function useInstanceForm(live: Instance): InstanceForm {
  const [edited, setEdited] = useState(false);
  const shown = useRef(live);
  if (!edited) shown.current = live;
  const change = (body: ChangeInstanceRequest) =>
    changeNow(live.id, (now) => {
      requireSeen(now, shown.current, body, () => {
        shown.current = now;
        putInstance(now);
      });
      return body;
    });
  return { shown: shown.current, onEdited: setEdited, change };
}

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

/** A VM that is on is stopped first, and started again if it ran. */
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
