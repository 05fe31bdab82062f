/** Actions on several instances at once, one request after the other, each with its own outcome. */
import type { Instance } from '../../../client/src/berth.ts';
import { call, sayError } from '../api.ts';
import { actionsOf, runAction } from '../instance/actions.ts';
import { putInstance } from '../live/instances.ts';
import type { IconName } from '../ui/icon.tsx';
import { stateOf } from './columns.tsx';

export const BULK_ACTIONS = ['start', 'stop', 'suspend', 'delete'] as const;
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

export const BULK_FACTS: Record<BulkAction, BulkFacts> = {
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
export function whyNot(action: BulkAction, instance: Instance): string | null {
  const state = stateOf(instance);
  if (BULK_FACTS[action].done.includes(state)) return `already ${state}`;
  if (action === 'delete' || actionsOf(instance).includes(action)) return null;
  return `left out: cannot be ${BULK_FACTS[action].past} while ${state}`;
}

/** What has become of each instance, by id. */
export type Outcome = 'asking' | 'accepted' | { readonly error: string };
export type Outcomes = ReadonlyMap<string, Outcome>;

/** Reports each outcome as it comes. One failure does not end the others. */
export async function runBulk(
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
