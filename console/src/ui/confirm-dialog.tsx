/** Asks before what cannot be taken back; with `word`, that word must be typed. */
import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { useAction } from '../use-action.ts';
import { Button } from './button.tsx';
import { Dialog, DialogActions } from './dialog.tsx';
import { Failure } from './failure.tsx';
import { Field } from './field.tsx';

interface Props {
  readonly title: string;
  readonly verb: string;
  readonly children: ComponentChildren;
  readonly word?: string;
  readonly harmless?: boolean;
  readonly onClose: () => void;
  readonly work: () => Promise<void>;
}

export function ConfirmDialog({ title, verb, children, word, harmless = false, onClose, work }: Props) {
  const action = useAction(work);
  const [typed, setTyped] = useState('');
  const ready = word === undefined || typed === word;
  const submit = async (event: Event) => {
    event.preventDefault();
    if (ready && (await action.run())) onClose();
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={submit}>
        <div class="dialog-body">
          {children}
          {word !== undefined && (
            <Field
              label={`Type ${word} to confirm`}
              value={typed}
              autocomplete="off"
              spellcheck={false}
              onInput={(event) => setTyped(event.currentTarget.value)}
            />
          )}
          <Failure text={action.error} />
        </div>
        <DialogActions>
          <Button onClick={onClose}>Cancel</Button>
          <Button submit kind={harmless ? 'primary' : 'danger'} busy={action.busy} disabled={!ready}>
            {verb}
          </Button>
        </DialogActions>
      </form>
    </Dialog>
  );
}
