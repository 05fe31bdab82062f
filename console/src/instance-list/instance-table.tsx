/**
 * Renders the list of instances as a table: headings that sort, a checkbox and action buttons for each row. `COLUMNS`
 * defines each column's content and sort key. `readColumns` and `writeColumns` keep the columns that the user has
 * chosen to show, in this browser.
 */
import type { ComponentChildren } from 'preact';
import type { Instance } from '../../../client/src/berth.ts';
import { durationText } from '../../../client/src/words.ts';
import { readChoice, writeChoice } from '../choices.ts';
import { mebibytes } from '../format.ts';
import { ActionButtons } from '../instance/actions.tsx';
import { Labels, StateBadge, savedState } from '../instance/state.tsx';
import { Time } from '../ui/time.tsx';
import type { Order } from './filters.tsx';

interface Props {
  readonly rows: readonly Instance[];
  /** Has a checkbox for each row. */
  readonly selects: boolean;
  /** Keys of columns. */
  readonly shown: readonly string[];
  readonly order: Order;
  readonly onOrder: (order: Order) => void;
  /** Ids. */
  readonly chosen: ReadonlySet<string>;
  readonly onChosen: (chosen: ReadonlySet<string>) => void;
}

/** The list as a table: sorted by a click on a heading, selected by checkboxes. */
export function InstanceTable({ rows, selects, shown, order, onOrder, chosen, onChosen }: Props) {
  const columns = COLUMNS.filter(({ key }) => key === 'name' || shown.includes(key));
  const all = rows.length > 0 && rows.every(({ id }) => chosen.has(id));
  const choose = (ids: readonly string[], is_chosen: boolean) => {
    const next = new Set(chosen);
    for (const id of ids) {
      if (is_chosen) next.add(id);
      else next.delete(id);
    }
    onChosen(next);
  };
  return (
    <div class="wide-table">
      <table class="table instances">
        <thead>
          <tr>
            {selects && (
              <th class="choose">
                <Choose
                  label="Select all shown instances"
                  checked={all}
                  onChange={(checked) =>
                    choose(
                      rows.map(({ id }) => id),
                      checked,
                    )
                  }
                />
              </th>
            )}
            {columns.map((column) => (
              <SortHead key={column.key} column={column} order={order} onOrder={onOrder} />
            ))}
            <th class="end">
              <span class="hidden">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.id} class={chosen.has(row.id) ? 'chosen' : undefined}>
              {selects && (
                <td class="choose">
                  <Choose
                    label={`Select ${row.name}`}
                    checked={chosen.has(row.id)}
                    onChange={(checked) => choose([row.id], checked)}
                  />
                </td>
              )}
              {columns.map(({ key, class: more, cell }) => (
                <td key={key} class={more}>
                  {cell(row)}
                </td>
              ))}
              <td class="end">
                <Actions instance={row} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface ChooseProps {
  readonly label: string;
  readonly checked: boolean;
  readonly onChange: (checked: boolean) => void;
}

function Choose({ label, checked, onChange }: ChooseProps) {
  return (
    <label>
      <input type="checkbox" checked={checked} onChange={(event) => onChange(event.currentTarget.checked)} />
      <span class="hidden">{label}</span>
    </label>
  );
}

interface HeadProps {
  readonly column: InstanceColumn;
  readonly order: Order;
  readonly onOrder: (order: Order) => void;
}

function SortHead({ column, order, onOrder }: HeadProps) {
  const { key, head, class: more } = column;
  const sorted = order.key === key;
  const direction = order.descending ? 'descending' : 'ascending';
  return (
    <th class={more} aria-sort={sorted ? direction : undefined}>
      <button
        type="button"
        class="sort"
        onClick={() => onOrder({ key, descending: sorted ? !order.descending : false })}
      >
        {head}
        <span class="sort-mark" aria-hidden="true">
          {sorted ? (order.descending ? '↓' : '↑') : ''}
        </span>
      </button>
    </th>
  );
}

function Actions({ instance }: { readonly instance: Instance }) {
  const { state } = instance.vm;
  const only = ['stopped', 'suspended', 'failed'].includes(state)
    ? 'start'
    : state === 'stopping'
      ? 'halt'
      : 'stop';
  return <ActionButtons instance={instance} small only={[only]} />;
}

interface InstanceColumn {
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

/** The columns of the list of instances: what each shows, and what it is sorted by. The name is always shown. */
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
