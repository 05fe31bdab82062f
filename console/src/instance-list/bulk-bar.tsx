/** The actions on the selected instances. It keeps its place while nothing is selected, so that nothing moves. */
import type { Instance } from '../../../client/src/berth.ts';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { BULK_ACTIONS, BULK_FACTS, type BulkAction } from './bulk-actions.ts';

interface Props {
  readonly chosen: readonly Instance[];
  readonly onAction: (action: BulkAction) => void;
  readonly onClear: () => void;
}

export function BulkBar({ chosen, onAction, onClear }: Props) {
  const none = chosen.length === 0;
  return (
    <section class={none ? 'bulk-bar none' : 'bulk-bar'} aria-label="Selected instances">
      <span aria-live="polite">{none ? 'None selected' : `${chosen.length} selected`}</span>
      {BULK_ACTIONS.map((action) => (
        <Button
          key={action}
          small
          kind={action === 'delete' ? 'danger' : 'plain'}
          disabled={none}
          aria-label={`${BULK_FACTS[action].name} the selected instances`}
          onClick={() => onAction(action)}
        >
          <Icon name={BULK_FACTS[action].icon} />
          {BULK_FACTS[action].name}
        </Button>
      ))}
      {none ? (
        <span>Select instances first.</span>
      ) : (
        <Button small kind="quiet" onClick={onClear}>
          Clear
        </Button>
      )}
    </section>
  );
}
