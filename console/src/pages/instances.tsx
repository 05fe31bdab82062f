/** All instances of the organisation, live. */
import { useState } from 'preact/hooks';
import type { Instance } from '../../../client/src/berth.ts';
import { bytes, mebibytes } from '../format.ts';
import { ActionButtons } from '../instance/action-buttons.tsx';
import { CreateDialog } from '../instance/create-dialog.tsx';
import { StateBadge } from '../instance/state-badge.tsx';
import { instances, instances_error, lookAgain } from '../live/instances.ts';
import { works } from '../live/membership.ts';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { Empty, Loaded, PageHead } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';

/** From here on a list is easier to search than to read. */
const SEARCH_FROM = 6;

export function InstancesPage() {
  const [creating, setCreating] = useState(false);
  const create = (
    <Button kind="primary" disabled={!works()} onClick={() => setCreating(true)}>
      <Icon name="plus" />
      New instance
    </Button>
  );
  const query = { data: instances.value, error: instances_error.value, reload: async () => lookAgain() };
  return (
    <>
      <PageHead title="Instances" lead="Disks that stay, with VMs that come and go." actions={create} />
      <Loaded query={query}>
        {(list) =>
          list.length === 0 ? (
            <Empty icon="instances" title="No instances yet">
              <p>
                An instance is a disk, a name and an SSH address that stay. Start its VM when you need it;
                what it writes is flushed to object storage.
              </p>
              {create}
            </Empty>
          ) : (
            <List list={list} />
          )
        }
      </Loaded>
      {creating && <CreateDialog onClose={() => setCreating(false)} />}
    </>
  );
}

function List({ list }: { readonly list: readonly Instance[] }) {
  const [wanted, setWanted] = useState('');
  const found = list.filter((each) => matches(each, wanted.trim().toLowerCase()));
  return (
    <>
      {list.length >= SEARCH_FROM && (
        <input
          class="search"
          type="search"
          placeholder="Name, state or label"
          aria-label="Search instances"
          value={wanted}
          onInput={(event) => setWanted(event.currentTarget.value)}
        />
      )}
      <table class="table instances">
        <thead>
          <tr>
            <th>Name</th>
            <th>State</th>
            <th class="wide-only">Size</th>
            <th class="wide-only">Generation</th>
            <th class="number wide-only">Dirty</th>
            <th class="end">
              <span class="hidden">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {found.map((each) => (
            <Row key={each.id} instance={each} />
          ))}
        </tbody>
      </table>
      {found.length === 0 && <p class="none-found">No instance matches.</p>}
    </>
  );
}

function matches({ name, vm, labels }: Instance, wanted: string): boolean {
  const words = [name, vm.state, ...Object.entries(labels).map(([key, value]) => `${key}=${value}`)];
  return words.some((word) => word.toLowerCase().includes(wanted));
}

function Row({ instance }: { readonly instance: Instance }) {
  const { name, cpus, memory_mib, disk_gib, disk, vm, labels } = instance;
  return (
    <tr>
      <td>
        <a class="row-name" href={`/instances/${name}`}>
          {name}
        </a>
        <Labels labels={labels} />
      </td>
      <td>
        <StateBadge instance={instance} />
        {vm.state === 'failed' && vm.reason && <p class="row-note">{vm.reason.message}</p>}
      </td>
      <td class="wide-only nowrap">
        {cpus} cpu · {mebibytes(memory_mib)} · {disk_gib} GiB
      </td>
      <td class="wide-only nowrap">
        {disk.generation === 0 ? <span class="dim">none yet</span> : disk.generation}
        {disk.durable_at !== null && (
          <span class="dim">
            {' '}
            · <Time at={disk.durable_at} />
          </span>
        )}
      </td>
      <td class="number wide-only nowrap">
        {vm.state === 'stopped' ? <span class="dim">–</span> : bytes(disk.dirty_bytes)}
      </td>
      <td class="end">
        <ActionButtons
          instance={instance}
          small
          only={[
            vm.state === 'stopped' || vm.state === 'suspended' || vm.state === 'failed'
              ? 'start'
              : vm.state === 'stopping'
                ? 'halt'
                : 'stop',
          ]}
        />
      </td>
    </tr>
  );
}

export function Labels({ labels }: { readonly labels: Readonly<Record<string, string>> }) {
  return (
    <>
      {Object.entries(labels).map(([key, value]) => (
        <span key={key} class="tag">
          {key}={value}
        </span>
      ))}
    </>
  );
}
