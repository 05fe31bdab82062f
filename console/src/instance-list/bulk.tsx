/**
 * Actions on several selected instances. `BulkBar` offers the actions that are possible. `BulkDialog` asks once, sends
 * one request after the other, and shows each instance's outcome: one failure does not stop the others.
 */

import { useState } from 'preact/hooks';
import type { Instance } from '../../../client/src/berth.ts';
import { call, sayError } from '../api.ts';
import { plural } from '../format.ts';
import { actionsOf, runAction } from '../instance/actions.tsx';
import { StateBadge } from '../instance/state.tsx';
import { instances, putInstance } from '../live/instances.ts';
import { Button } from '../ui/button.tsx';
import { Dialog, DialogActions } from '../ui/dialog.tsx';
import { Field } from '../ui/field.tsx';
import { Icon, type IconName } from '../ui/icon.tsx';
import { stateOf } from './instance-table.tsx';

interface BulkBarProps {
  readonly chosen: readonly Instance[];
  readonly onAction: (action: BulkAction) => void;
  readonly onClear: () => void;
}

/** The actions on the selected instances. It keeps its place while nothing is selected, so that nothing moves. */
export function BulkBar({ chosen, onAction, onClear }: BulkBarProps) {
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

interface BulkDialogProps {
  readonly action: BulkAction;
  /** As they were when the dialog opened. */
  readonly chosen: readonly Instance[];
  readonly onClose: () => void;
}

/** Asks once for an action on several instances, and shows what becomes of each. */
export function BulkDialog({ action, chosen, onClose }: BulkDialogProps) {
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

const BULK_ACTIONS = ['start', 'stop', 'suspend', 'delete'] as const;
export type BulkAction = (typeof BULK_ACTIONS)[number];

interface BulkFacts {
  readonly name: string;
  readonly past: string;
  readonly icon: IconName;
  /** The consequence, for the confirmation. */
  readonly about: string;
  /** The states that the action would lead to: nothing is left to do. */
  readonly done: readonly string[];
}

const BULK_FACTS: Record<BulkAction, BulkFacts> = {
  start: {
    name: 'Start',
    past: 'started',
    icon: 'play',
    about: 'Each VM starts; a suspended one resumes.',
    done: ['starting', 'running', 'restarting'],
  },
  stop: {
    name: 'Stop',
    past: 'stopped',
    icon: 'stop',
    about: 'Each guest is shut down and its disk is saved. The saved memory of a suspended VM is dropped.',
    done: ['stopping', 'stopped'],
  },
  suspend: {
    name: 'Suspend',
    past: 'suspended',
    icon: 'pause',
    about: 'The memory and disk of each VM are saved, and it ends. Resume continues from there.',
    done: ['suspending', 'suspended'],
  },
  delete: {
    name: 'Delete',
    past: 'deleted',
    icon: 'close',
    about: 'Each VM ends, and its disk is deleted with all its generations. This cannot be undone.',
    done: ['deleting'],
  },
};

/** Why the action does not apply to an instance now; null if it does. */
function whyNot(action: BulkAction, instance: Instance): string | null {
  const state = stateOf(instance);
  if (BULK_FACTS[action].done.includes(state)) return `already ${state}`;
  if (action === 'delete' || actionsOf(instance).includes(action)) return null;
  return `left out: cannot be ${BULK_FACTS[action].past} while ${state}`;
}

/** What has become of each instance, by id. */
type Outcome = 'asking' | 'accepted' | { readonly error: string };
type Outcomes = ReadonlyMap<string, Outcome>;

/** Reports each outcome as it comes. One failure does not end the others. */
async function runBulk(
  action: BulkAction,
  instances: readonly Instance[],
  onOutcome: (id: string, outcome: Outcome) => void,
): Promise<void> {
  for (const instance of instances) {
    const { id } = instance;
    onOutcome(id, 'asking');
    try {
      if (action === 'delete') putInstance(await call('deleteInstance', { path: { id } }));
      else await runAction(action, instance);
      onOutcome(id, 'accepted');
    } catch (error) {
      onOutcome(id, { error: sayError(error) });
    }
  }
}
