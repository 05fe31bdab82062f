/** The columns of the list of instances: what each shows, and what it is sorted by. The name is always shown. */
import type { ComponentChildren } from 'preact';
import type { Instance } from '../../../client/src/berth.ts';
import { durationText } from '../../../client/src/words.ts';
import { readChoice, writeChoice } from '../choices.ts';
import { mebibytes } from '../format.ts';
import { Labels } from '../instance/labels.tsx';
import { savedState } from '../instance/saved-state.ts';
import { StateBadge } from '../instance/state-badge.tsx';
import { Time } from '../ui/time.tsx';

export interface InstanceColumn {
  readonly key: string;
  readonly head: string;
  readonly cell: (instance: Instance) => ComponentChildren;
  readonly sort: (instance: Instance) => string | number;
  readonly class?: string;
  /** Shown until the user chooses columns. */
  readonly usual?: boolean;
}

const timeOf = (time: string | null) => (time === null ? 0 : Date.parse(time));

const NAME: InstanceColumn = {
  key: 'name',
  head: 'Name',
  class: 'name-cell',
  sort: ({ name }) => name,
  cell: ({ name, labels }) => (
    <>
      <a class="row-name" href={`/instances/${name}`}>
        {name}
      </a>
      <Labels labels={labels} />
    </>
  ),
};

const STATE: InstanceColumn = {
  key: 'state',
  head: 'State',
  usual: true,
  sort: stateOf,
  cell: (instance) => (
    <>
      <StateBadge instance={instance} />
      {instance.vm.state === 'failed' && instance.vm.reason && (
        <p class="row-note">{instance.vm.reason.message}</p>
      )}
      {instance.disk.dirty_bytes > 0 && <div class="narrow-only hint">{savedState(instance)}</div>}
    </>
  ),
};

const NUMBER = 'number wide-only nowrap';
const WIDE = 'wide-only nowrap';

export const COLUMNS: readonly InstanceColumn[] = [
  NAME,
  STATE,
  {
    key: 'cpus',
    head: 'CPUs',
    class: NUMBER,
    usual: true,
    sort: ({ cpus }) => cpus,
    cell: ({ cpus }) => cpus,
  },
  {
    key: 'memory',
    head: 'Memory',
    class: NUMBER,
    usual: true,
    sort: ({ memory_mib }) => memory_mib,
    cell: ({ memory_mib }) => mebibytes(memory_mib),
  },
  {
    key: 'disk',
    head: 'Disk',
    class: NUMBER,
    usual: true,
    sort: ({ disk_gib }) => disk_gib,
    cell: ({ disk_gib }) => `${disk_gib} GiB`,
  },
  {
    key: 'saved',
    head: 'Saved',
    class: WIDE,
    usual: true,
    sort: ({ disk }) => disk.dirty_bytes,
    cell: (instance) => savedState(instance),
  },
  {
    key: 'flushed',
    head: 'Last flush',
    class: WIDE,
    sort: ({ disk }) => timeOf(disk.durable_at),
    cell: ({ disk }) => <Time at={disk.durable_at} />,
  },
  {
    key: 'generation',
    head: 'Generation',
    class: NUMBER,
    sort: ({ disk }) => disk.generation,
    cell: ({ disk }) => disk.generation,
  },
  {
    key: 'ssh',
    head: 'SSH address',
    class: WIDE,
    sort: ({ ssh }) => ssh.port,
    cell: ({ ssh }) => (
      <code>
        {ssh.host}:{ssh.port}
      </code>
    ),
  },
  { key: 'image', head: 'Image', class: WIDE, sort: ({ image }) => image, cell: ({ image }) => image },
  {
    key: 'started',
    head: 'Started',
    class: WIDE,
    sort: ({ vm }) => timeOf(vm.started_at),
    cell: ({ vm }) => <Time at={vm.started_at} />,
  },
  {
    key: 'idle',
    head: 'Idle stop',
    class: WIDE,
    sort: ({ idle_timeout_seconds }) => idle_timeout_seconds ?? Number.MAX_SAFE_INTEGER,
    cell: ({ idle_timeout_seconds }) =>
      idle_timeout_seconds === null ? 'off' : `after ${durationText(idle_timeout_seconds)}`,
  },
  {
    key: 'created',
    head: 'Created',
    class: WIDE,
    usual: true,
    sort: ({ created_at }) => timeOf(created_at),
    cell: ({ created_at }) => <Time at={created_at} />,
  },
];

export function stateOf({ vm, deleting }: Instance): string {
  return deleting ? 'deleting' : vm.state;
}

/** The keys of the shown columns, as this browser keeps them. */
export function readColumns(): readonly string[] {
  const kept = readChoice('columns')?.split(',');
  return kept ?? COLUMNS.filter(({ usual }) => usual).map(({ key }) => key);
}

export function writeColumns(keys: readonly string[]): void {
  writeChoice('columns', keys.join(','));
}
