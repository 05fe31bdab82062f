import type { Generation } from '../../../client/src/berth.ts';
import { Button } from '../ui/button.tsx';
import { Dialog, DialogActions } from '../ui/dialog.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field } from '../ui/field.tsx';
import { useAction } from '../use-action.ts';

interface Props {
  readonly generation: Generation;
  readonly onClose: () => void;
  /** null: no name any more. */
  readonly work: (name: string | null) => Promise<void>;
}

export function NameDialog({ generation, onClose, work }: Props) {
  const action = useAction(work);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const name = String(new FormData(event.currentTarget as HTMLFormElement).get('name')).trim();
    if (await action.run(name === '' ? null : name)) onClose();
  };
  return (
    <Dialog title={`Name generation ${generation.generation}`} onClose={onClose}>
      <form onSubmit={submit}>
        <div class="dialog-body">
          <Field
            label="Name"
            name="name"
            defaultValue={generation.name ?? ''}
            maxLength={100}
            autofocus
            placeholder="before the upgrade"
            hint="Empty: none"
            issue={action.issues['name']}
          />
          <Failure text={action.error} />
        </div>
        <DialogActions>
          <Button onClick={onClose}>Cancel</Button>
          <Button submit kind="primary" busy={action.busy}>
            Save
          </Button>
        </DialogActions>
      </form>
    </Dialog>
  );
}
