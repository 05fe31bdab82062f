/** A new instance whose disk begins as a generation of this one. */
import type { Instance } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { putInstance } from '../live/instances.ts';
import { navigate } from '../router.ts';
import { Button } from '../ui/button.tsx';
import { Dialog, DialogActions } from '../ui/dialog.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field } from '../ui/field.tsx';
import { useAction } from '../use-action.ts';

interface Props {
  readonly instance: Instance;
  /** Absent: the last durable one. */
  readonly generation?: number;
  readonly onClose: () => void;
}

export function ForkDialog({ instance, generation, onClose }: Props) {
  const from = generation ?? instance.disk.generation;
  const action = useAction(async (name: string) => {
    const path = { id: instance.id };
    const forked = await call('forkInstance', {
      path,
      body: { name, ...(generation === undefined ? {} : { generation }) },
    });
    putInstance(forked);
    navigate(`/instances/${forked.name}`);
  });
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const name = new FormData(event.currentTarget as HTMLFormElement).get('name');
    if (await action.run(String(name).trim())) onClose();
  };
  return (
    <Dialog title={`Fork ${instance.name}`} onClose={onClose}>
      <form onSubmit={submit}>
        <div class="dialog-body">
          <p>
            The new instance begins with the files of generation {from}. Nothing is copied. It gets a name, an
            SSH port and a host key of its own.
          </p>
          <Field
            label="Name"
            name="name"
            required
            autofocus
            autocomplete="off"
            spellcheck={false}
            pattern="[a-z0-9]([a-z0-9\-]*[a-z0-9])?"
            title="Small letters, digits and hyphens"
            placeholder={`${instance.name}-2`}
            issue={action.issues['name']}
          />
          <Failure text={action.error} />
        </div>
        <DialogActions>
          <Button onClick={onClose}>Cancel</Button>
          <Button submit kind="primary" busy={action.busy}>
            Fork
          </Button>
        </DialogActions>
      </form>
    </Dialog>
  );
}
