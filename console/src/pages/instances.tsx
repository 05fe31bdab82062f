/** All instances of the organisation, live. */
import { useEffect, useState } from 'preact/hooks';
import type { Instance } from '../../../client/src/berth.ts';
import { bytes, mebibytes } from '../format.ts';
import { ActionButtons } from '../instance/action-buttons.tsx';
import { CreateDialog, is_creating } from '../instance/create-dialog.tsx';
import { StateBadge } from '../instance/state-badge.tsx';
import { instances, instances_error, refreshSoon } from '../live/instances.ts';
import { whyNoWork } from '../live/membership.ts';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { LoadedList } from '../ui/loaded-list.tsx';
import { Empty, PageHead } from '../ui/page.tsx';
import { type Column, Table } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';

const WHAT_IT_IS =
  'An instance is a Linux machine that you can stop without losing a file: its disk, name and SSH address stay until you delete it.';
/** From this many rows on, the list has a search field. */
const SEARCH_FROM = 6;

export function InstancesPage() {
  const creating = is_creating.value;
  const setCreating = (next: boolean) => {
    is_creating.value = next;
  };
  useEffect(() => () => setCreating(false), []);
  const create = (
    <Button kind="primary" reason={whyNoWork()} onClick={() => setCreating(true)}>
      <Icon name="plus" />
      New instance
    </Button>
  );
  const query = { data: instances.value, error: instances_error.value, reload: async () => refreshSoon() };
  return (
    <>
      <PageHead title="Instances" lead={WHAT_IT_IS} actions={create} />
      <LoadedList
        list={query}
        empty={
          <Empty icon="instances" title="No instances yet">
            <p>
              {WHAT_IT_IS} Create the first one here, or with <code>berth up NAME</code>.
            </p>
            {create}
          </Empty>
        }
      >
        {(list) => <List list={list} />}
      </LoadedList>
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
      <Table class="instances" rows={found} columns={COLUMNS} end={Actions} />
      {found.length === 0 && <p class="none-found">No instance matches.</p>}
    </>
  );
}

function matches({ name, vm, labels }: Instance, wanted: string): boolean {
  const words = [name, vm.state, ...Object.entries(labels).map(([key, value]) => `${key}=${value}`)];
  return words.some((word) => word.toLowerCase().includes(wanted));
}

const COLUMNS: readonly Column<Instance>[] = [
  {
    head: 'Name',
    cell: ({ name, labels }) => (
      <>
        <a class="row-name" href={`/instances/${name}`}>
          {name}
        </a>
        <Labels labels={labels} />
      </>
    ),
  },
  {
    head: 'State',
    cell: (instance) => (
      <>
        <StateBadge instance={instance} />
        {instance.vm.state === 'failed' && instance.vm.reason && (
          <p class="row-note">{instance.vm.reason.message}</p>
        )}
      </>
    ),
  },
  {
    head: 'Size',
    class: 'wide-only nowrap',
    cell: ({ cpus, memory_mib, disk_gib }) => `${cpus} cpu · ${mebibytes(memory_mib)} · ${disk_gib} GiB`,
  },
  {
    head: 'Generation',
    class: 'wide-only nowrap',
    cell: ({ disk }) => (
      <>
        {disk.generation === 0 ? <span class="dim">none yet</span> : disk.generation}
        {disk.durable_at !== null && (
          <span class="dim">
            {' '}
            · <Time at={disk.durable_at} />
          </span>
        )}
      </>
    ),
  },
  {
    head: 'Dirty',
    class: 'number wide-only nowrap',
    cell: ({ vm, disk }) => (vm.state === 'stopped' ? <span class="dim">–</span> : bytes(disk.dirty_bytes)),
  },
];

function Actions(instance: Instance) {
  const { state } = instance.vm;
  const only = ['stopped', 'suspended', 'failed'].includes(state)
    ? 'start'
    : state === 'stopping'
      ? 'halt'
      : 'stop';
  return <ActionButtons instance={instance} small only={[only]} />;
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
