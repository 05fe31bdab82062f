/** The list as a table: sorted by a click on a heading, selected by checkboxes. */
import type { Instance } from '../../../client/src/berth.ts';
import { ActionButtons } from '../instance/action-buttons.tsx';
import { COLUMNS, type InstanceColumn } from './columns.tsx';
import type { Order } from './select-instances.ts';

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
