/** Asks once for an action on several instances, and shows what becomes of each. */
import { useState } from 'preact/hooks';
import type { Instance } from '../../../client/src/berth.ts';
import { plural } from '../format.ts';
import { StateBadge } from '../instance/state-badge.tsx';
import { instances } from '../live/instances.ts';
import { Button } from '../ui/button.tsx';
import { Dialog, DialogActions } from '../ui/dialog.tsx';
import { Field } from '../ui/field.tsx';
import { BULK_FACTS, type BulkAction, type Outcome, type Outcomes, runBulk, whyNot } from './bulk-actions.ts';

interface Props {
  readonly action: BulkAction;
  /** As they were when the dialog opened. */
  readonly chosen: readonly Instance[];
  readonly onClose: () => void;
}

export function BulkDialog({ action, chosen, onClose }: Props) {
  const { name, about } = BULK_FACTS[action];
  const [outcomes, setOutcomes] = useState<Outcomes>(new Map());
  const [busy, setBusy] = useState(false);
  const [typed, setTyped] = useState('');
  const possible = chosen.filter((each) => whyNot(action, each) === null);
  const failed = possible.filter(({ id }) => typeof outcomes.get(id) === 'object');
  const begun = outcomes.size > 0;
  const word = action === 'delete' && !begun ? `delete ${possible.length}` : null;
  const run = async (which: readonly Instance[]) => {
    setBusy(true);
    await runBulk(action, which, (id, outcome) => setOutcomes((before) => new Map(before).set(id, outcome)));
    setBusy(false);
  };
  return (
    <Dialog title={`${name} ${plural(possible.length, 'instance')}`} onClose={onClose} busy={busy}>
      <div class="dialog-body">
        {!begun && <p>{about}</p>}
        <ul class="bulk-list" aria-live="polite">
          {chosen.map((each) => (
            <Item
              key={each.id}
              instance={each}
              skipped={whyNot(action, each)}
              outcome={outcomes.get(each.id) ?? (busy ? 'waiting' : null)}
            />
          ))}
        </ul>
        {word !== null && possible.length > 0 && (
          <Field
            label={`Type “${word}” to confirm`}
            value={typed}
            autocomplete="off"
            spellcheck={false}
            autofocus
            onInput={(event) => setTyped(event.currentTarget.value)}
          />
        )}
      </div>
      <DialogActions>
        <Button disabled={busy} onClick={onClose}>
          {begun ? 'Close' : 'Cancel'}
        </Button>
        {(!begun || busy || failed.length > 0) && (
          <Button
            kind={action === 'delete' ? 'danger' : 'primary'}
            busy={busy}
            disabled={possible.length === 0 || (word !== null && typed !== word)}
            onClick={() => void run(begun ? failed : possible)}
          >
            {begun && !busy ? `Try ${failed.length} again` : name}
          </Button>
        )}
      </DialogActions>
    </Dialog>
  );
}

interface ItemProps {
  readonly instance: Instance;
  readonly skipped: string | null;
  readonly outcome: Outcome | 'waiting' | null;
}

/** Its live state is the progress. */
function Item({ instance, skipped, outcome }: ItemProps) {
  const now = instances.value?.find(({ id }) => id === instance.id);
  return (
    <li>
      <strong>{instance.name}</strong>
      {now ? <StateBadge instance={now} /> : <span class="dim">deleted</span>}
      <span class={typeof outcome === 'object' && outcome !== null ? 'bulk-error' : 'dim'}>
        {skipped ?? wordOf(outcome)}
      </span>
    </li>
  );
}

function wordOf(outcome: Outcome | 'waiting' | null): string {
  if (outcome === null) return '';
  return typeof outcome === 'object' ? outcome.error : outcome;
}
