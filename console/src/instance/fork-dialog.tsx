/**
 * The dialog that forks an instance. It says what the fork will lack, and can flush a running VM first, so that the
 * fork has all its files.
 */
import type { Generation, Instance, VmState } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { bytes } from '../format.ts';
import { putInstance } from '../live/instances.ts';
import { navigate } from '../router.ts';
import { Checkbox } from '../ui/field.tsx';
import { FormDialog } from '../ui/form.tsx';
import { Time } from '../ui/time.tsx';
import { forkCommands } from './as-commands.ts';
import { CommandView, newName } from './command-view.tsx';
import { NewNameField } from './instance-form.tsx';

interface Props {
  readonly instance: Instance;
  /** Absent: the current state. */
  readonly generation?: Generation;
  readonly onClose: () => void;
}

/** All that their VMs wrote is saved. */
const QUIET: readonly VmState[] = ['stopped', 'suspended'];

export function ForkDialog({ instance, generation, onClose }: Props) {
  const { id, vm, name: parent } = instance;
  const may_flush = generation === undefined && (vm.state === 'running' || vm.state === 'restarting');
  const work = async (form: FormData) => {
    const name = String(form.get('name')).trim();
    if (may_flush && form.get('flush') !== null) await call('flushVm', { path: { id } });
    const body = {
      name,
      ...(generation === undefined ? {} : { generation: generation.generation }),
      ...(form.get('secrets') === null ? {} : { secrets: true }),
    };
    const forked = await call('forkInstance', { path: { id }, body });
    putInstance(forked);
    navigate(`/instances/${forked.name}`);
  };
  const commandsOf = (form: FormData) => {
    const name = newName(form);
    const flush = may_flush ? form.get('flush') !== null : null;
    const secrets = form.get('secrets') !== null;
    const forking = { name, generation: generation?.generation, flush, secrets };
    return forkCommands(instance, forking, location.origin);
  };
  return (
    <FormDialog title={`Fork ${parent}`} verb="Fork" onClose={onClose} work={work}>
      <p>
        The new instance begins with the files of{' '}
        {generation === undefined ? parent : `generation ${generation.generation} of ${parent}`}, at once:
        nothing is copied. It has its own name, SSH port and host key, and accepts your SSH keys.
      </p>
      <NewNameField placeholder={`${parent}-2`} />
      {generation === undefined ? (
        <SavedPart instance={instance} may_flush={may_flush} />
      ) : (
        <p class="hint">
          Generation {generation.generation} was saved <Time at={generation.created_at} />.
        </p>
      )}
      <Checkbox
        label="With the values of the secrets"
        name="secrets"
        hint="Without, it has their names and hosts only"
      />
      <CommandView of={commandsOf} />
    </FormDialog>
  );
}

function SavedPart({ instance, may_flush }: { readonly instance: Instance; readonly may_flush: boolean }) {
  const { disk } = instance;
  return (
    <>
      <p class="hint">
        {disk.generation === 0 ? (
          'Nothing is saved yet: flush first.'
        ) : (
          <>
            Saved <Time at={disk.durable_at} />, as generation {disk.generation}.{' '}
            {missingOf(instance, may_flush)}
          </>
        )}
      </p>
      {may_flush && (
        <Checkbox
          label="Flush first"
          name="flush"
          defaultChecked
          hint={`Saves everything that ${instance.name} has written so far, so that the fork has it`}
        />
      )}
    </>
  );
}

/**
 * What the fork lacks. The host's last report may be some seconds old, and does not count what the guest holds in memory. So a VM
 * that may have written since is never shown as saved.
 */
function missingOf({ name, disk, vm }: Instance, may_flush: boolean): string {
  if (QUIET.includes(vm.state)) return '';
  const amount = disk.dirty_bytes === 0 ? '' : bytes(disk.dirty_bytes);
  if (vm.state === 'failed') return amount === '' ? '' : `At most ${amount} written later is not included.`;
  const known = amount === '' ? '' : `, at least ${amount}`;
  return `${may_flush ? 'Without a flush the fork lacks' : 'The fork lacks'} what ${name} has written since then${known}.`;
}
