/** The actions that the VM's state allows. Each has a fixed place, so that nothing moves when the state changes. */
import type { ComponentChildren } from 'preact';
import { useId, useState } from 'preact/hooks';
import type { Instance } from '../../../client/src/berth.ts';
import { attempt } from '../attempt.ts';
import { Button } from '../ui/button.tsx';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { Icon } from '../ui/icon.tsx';
import { tell } from '../ui/toasts.tsx';
import { actionsOf, factsOf, runAction, type VmAction, whyFixed, whyNotAll } from './actions.ts';

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
