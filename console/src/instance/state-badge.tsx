import type { Instance } from '../../../client/src/berth.ts';
import { isChanging } from '../live/instances.ts';

/** The VM's state in a word, with a dot that is animated while the state changes. */
export function StateBadge({ instance }: { readonly instance: Instance }) {
  const state = instance.deleting ? 'deleting' : instance.vm.state;
  return (
    <span class={`state ${state}${isChanging(instance) ? ' moving' : ''}`} data-state={state}>
      <span class="dot" aria-hidden="true" />
      {state}
    </span>
  );
}
