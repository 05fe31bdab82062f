import type { Instance } from '../../../client/src/berth.ts';
import { isOnItsWay } from '../live/instances.ts';

/** The VM's state in a word, with a dot that moves while it is on its way to another. */
export function StateBadge({ instance }: { readonly instance: Instance }) {
  const state = instance.deleting ? 'deleting' : instance.vm.state;
  return (
    <span class={`state ${state}${isOnItsWay(instance) ? ' moving' : ''}`} data-state={state}>
      <span class="dot" aria-hidden="true" />
      {state}
    </span>
  );
}
