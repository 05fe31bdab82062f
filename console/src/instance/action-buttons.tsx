/** The actions that the VM's state allows. Each has a fixed place, so that nothing moves when the state changes. */
import { useState } from 'preact/hooks';
import type { Instance } from '../../../client/src/berth.ts';
import { attempt } from '../attempt.ts';
import { works } from '../live/membership.ts';
import { Button } from '../ui/button.tsx';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { Icon } from '../ui/icon.tsx';
import { tell } from '../ui/toasts.tsx';
import { actionsOf, factsOf, runAction, type VmAction } from './actions.ts';

interface Props {
  readonly instance: Instance;
  readonly small?: boolean;
  readonly only?: readonly VmAction[];
}

export function ActionButtons({ instance, small = false, only }: Props) {
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
  const first: VmAction = possible.includes('start') ? 'start' : possible.includes('halt') ? 'halt' : 'stop';
  const shown = (only ?? [
    first,
    'restart',
    ...(small ? [] : (['suspend'] as const)),
    'flush',
    ...(possible.includes('start') && possible.includes('stop') ? (['stop'] as const) : []),
  ]) as readonly VmAction[];
  return (
    <div class="actions">
      {shown.map((action) => (
        <Button
          key={action}
          small={small}
          kind={action === 'start' && !small ? 'primary' : 'plain'}
          busy={busy.includes(action)}
          disabled={!works() || !possible.includes(action)}
          title={factsOf(action, instance).about}
          aria-label={small ? `${factsOf(action, instance).name} ${instance.name}` : undefined}
          onClick={() => (action === 'halt' ? setAsked(true) : void run(action))}
        >
          <Icon name={factsOf(action, instance).icon} />
          {factsOf(action, instance).name}
        </Button>
      ))}
      {asked && (
        <ConfirmDialog
          title={`Force stop ${instance.name}`}
          verb="Force stop"
          onClose={() => setAsked(false)}
          work={async () => {
            if (actionsOf(instance).includes('halt')) await runAction('halt', instance);
          }}
        >
          <p>The guest is not shut down: as in a power cut, data that it has not written yet is lost.</p>
        </ConfirmDialog>
      )}
    </div>
  );
}
