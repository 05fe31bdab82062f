/**
 * Defines which actions a VM's state allows (start, stop, suspend …), renders their buttons and runs them. Keeps the
 * receipt of each instance's last flush until the user closes it or starts another action.
 */
import { signal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useId, useState } from 'preact/hooks';
import type { FlushReceipt, Instance, VmState } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { putVm } from '../live/instances.ts';
import { whyNoWork } from '../live/membership.ts';
import { Button } from '../ui/button.tsx';
import { ConfirmDialog } from '../ui/form.tsx';
import { Icon, type IconName } from '../ui/icon.tsx';
import { tell } from '../ui/toasts.tsx';
import { attempt } from '../use-action.ts';

const VM_ACTIONS = ['start', 'stop', 'restart', 'suspend', 'flush', 'halt'] as const;
export type VmAction = (typeof VM_ACTIONS)[number];

/** The API's own table is in src/control-plane/vms/model.ts. */
const BY_STATE: Record<VmState, readonly VmAction[]> = {
  stopped: ['start'],
  starting: ['stop'],
  running: ['stop', 'restart', 'suspend', 'flush'],
  restarting: ['stop', 'flush'],
  suspending: ['stop'],
  suspended: ['start', 'stop'],
  stopping: ['halt'],
  failed: ['start', 'stop', 'flush'],
};

interface ActionFacts {
  readonly name: string;
  readonly icon: IconName;
  /** Its effect, as tooltip. */
  readonly about: string;
}

const ACTIONS: Record<VmAction, ActionFacts> = {
  start: { name: 'Start', icon: 'play', about: 'Boot the VM; ready once SSH works' },
  stop: { name: 'Stop', icon: 'stop', about: 'Shut the guest down, flush its disk, end the VM' },
  restart: { name: 'Restart', icon: 'restart', about: 'Soft reboot: same VM, same disk, no flush' },
  suspend: {
    name: 'Suspend',
    icon: 'pause',
    about: 'Save memory and disk, and end the VM; Resume continues from there',
  },
  flush: { name: 'Flush', icon: 'flush', about: 'Save everything written so far' },
  halt: {
    name: 'Force stop',
    icon: 'stop',
    about: 'Do not wait for the guest; its disk is saved all the same',
  },
};

/** A suspended VM continues where it was. */
const RESUME: ActionFacts = {
  name: 'Resume',
  icon: 'play',
  about: 'Continue from the saved memory; ready once SSH works',
};

export function factsOf(action: VmAction, { vm }: Pick<Instance, 'vm'>): ActionFacts {
  return action === 'start' && vm.state === 'suspended' ? RESUME : ACTIONS[action];
}

export function actionsOf({ vm, deleting }: Instance): readonly VmAction[] {
  return deleting ? [] : BY_STATE[vm.state];
}

/** Why nothing of this instance can be changed; undefined: it can. */
export function whyFixed({ deleting }: Instance): string | undefined {
  return deleting ? 'The instance is being deleted.' : whyNoWork();
}

/** Why some of the shown actions cannot be used now; undefined: all can. */
function whyNotAll(instance: Instance, shown: readonly VmAction[]): string | undefined {
  const fixed = whyFixed(instance);
  if (fixed !== undefined) return fixed;
  const possible = actionsOf(instance);
  const off = shown.filter((each) => !possible.includes(each));
  const names = off.filter((each) => each !== 'start').map((each) => factsOf(each, instance).name);
  const list = names.length <= 1 ? names[0] : `${names.slice(0, -1).join(', ')} and ${names.at(-1)}`;
  const sentences = [
    off.includes('start') ? WHY_NO_START[instance.vm.state] : undefined,
    list === undefined ? undefined : `${list} ${names.length === 1 ? 'needs' : 'need'} a running VM.`,
  ];
  return sentences.filter((each) => each !== undefined).join(' ') || undefined;
}

const WHY_NO_START: Partial<Record<VmState, string>> = {
  starting: 'The VM is starting.',
  running: 'The VM runs already.',
  restarting: 'The VM is restarting.',
  suspending: 'The VM is being suspended.',
  stopping: 'The VM is being stopped.',
};

/** The last receipt of each instance, until the user closes it or starts another action. */
export const receipts = signal<ReadonlyMap<string, FlushReceipt>>(new Map());

export function dropReceipt(id: string): void {
  const left = new Map(receipts.value);
  left.delete(id);
  receipts.value = left;
}

export async function runAction(action: VmAction, { id }: Instance): Promise<void> {
  const path = { id };
  // The receipt describes a disk that is about to change.
  dropReceipt(id);
  switch (action) {
    case 'start':
      return putVm(await call('startVm', { path }));
    case 'restart':
      return putVm(await call('restartVm', { path }));
    case 'suspend':
      return putVm(await call('suspendVm', { path }));
    case 'stop':
      return putVm(await call('stopVm', { path }));
    case 'halt':
      return putVm(await call('stopVm', { path, query: { force: 'true' } }));
    case 'flush': {
      const receipt = await call('flushVm', { path });
      receipts.value = new Map(receipts.value).set(id, receipt);
    }
  }
}

interface Props {
  readonly instance: Instance;
  readonly small?: boolean;
  readonly only?: readonly VmAction[];
  /** Buttons beside them. */
  readonly children?: ComponentChildren;
  /** Why those cannot be used; shown with their own reason. */
  readonly also?: string | undefined;
}

/** In their order. `stop` becomes `halt` while the guest shuts down. */
const SHOWN: readonly VmAction[] = ['start', 'stop', 'restart', 'suspend', 'flush'];

/** The actions that the VM's state allows. Each has a fixed place, so that nothing moves when the state changes. */
export function ActionButtons({ instance, small = false, only = SHOWN, children, also }: Props) {
  // Several at once: a flush may last minutes, and a stop does not wait for it.
  const [busy, setBusy] = useState<readonly VmAction[]>([]);
  // It stands where Stop was, so an accidental second click must not trigger it.
  const [asked, setAsked] = useState(false);
  const possible = actionsOf(instance);
  const run = async (action: VmAction) => {
    if (busy.includes(action)) return;
    setBusy((before) => [...before, action]);
    await attempt(async () => {
      await runAction(action, instance);
      if (action === 'flush' && small)
        tell('good', `Flushed ${instance.name}.`, `/instances/${instance.name}`);
    });
    setBusy((before) => before.filter((each) => each !== action));
  };
  const shown = only.map((each) => (each === 'stop' && possible.includes('halt') ? 'halt' : each));
  const reason = whyNotAll(instance, shown);
  const reason_id = useId();
  const isOff = (action: VmAction) => whyFixed(instance) !== undefined || !possible.includes(action);
  return (
    <div class="actions">
      {shown.map((action) => (
        <Button
          key={action}
          small={small}
          class={small ? '' : `action-${action}`}
          kind={action === 'start' && !small && !isOff(action) ? 'primary' : 'plain'}
          busy={busy.includes(action)}
          disabled={isOff(action)}
          aria-describedby={isOff(action) && !small ? reason_id : undefined}
          title={factsOf(action, instance).about}
          aria-label={small ? `${factsOf(action, instance).name} ${instance.name}` : undefined}
          onClick={() => (action === 'halt' ? setAsked(true) : void run(action))}
        >
          <Icon name={factsOf(action, instance).icon} />
          <span class="action-name">{factsOf(action, instance).name}</span>
        </Button>
      ))}
      {children}
      {!small && (
        // Its line is kept, so that nothing moves when the state changes.
        <p class="hint actions-reason" id={reason_id}>
          {[reason, also].filter(Boolean).join(' ') || '\u00a0'}
        </p>
      )}
      {asked && (
        <ConfirmDialog
          title={`Force stop ${instance.name}`}
          verb="Force stop"
          onClose={() => setAsked(false)}
          work={async () => {
            if (actionsOf(instance).includes('halt')) await runAction('halt', instance);
          }}
        >
          <p>
            The guest is not shut down. As in a power cut, what it has not written to its disk yet is lost.
            The disk itself is saved.
          </p>
        </ConfirmDialog>
      )}
    </div>
  );
}
