import type { Instance } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { putInstance } from '../live/instances.ts';
import { navigate } from '../router.ts';
import { FormDialog } from '../ui/form.tsx';
import { forkCommands } from './as-commands.ts';
import { CommandView, newName } from './command-view.tsx';
import { NewNameField } from './instance-form.tsx';

interface Props {
  readonly instance: Instance;
  /** Absent: the last durable one. */
  readonly generation?: number;
  readonly onClose: () => void;
}

export function ForkDialog({ instance, generation, onClose }: Props) {
  const work = async (form: FormData) => {
    const name = String(form.get('name')).trim();
    const body = { name, ...(generation === undefined ? {} : { generation }) };
    const forked = await call('forkInstance', { path: { id: instance.id }, body });
    putInstance(forked);
    navigate(`/instances/${forked.name}`);
  };
  const commandsOf = (form: FormData) => {
    const name = newName(form);
    return forkCommands(instance, { name, generation, flush: null }, location.origin);
  };
  return (
    <FormDialog title={`Fork ${instance.name}`} verb="Fork" onClose={onClose} work={work}>
      {(issues) => (
        <>
          <p>
            The new instance begins with the files of generation {generation ?? instance.disk.generation}.
            Nothing is copied. It gets a name, an SSH port and a host key of its own.
          </p>
          <NewNameField placeholder={`${instance.name}-2`} issue={issues['name']} />
          <CommandView of={commandsOf} />
        </>
      )}
    </FormDialog>
  );
}
