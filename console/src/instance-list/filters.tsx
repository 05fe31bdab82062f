/**
 * Filters and sorts the list of instances: by text, state and label, and by a column of the table. Renders the fields
 * for these choices, and the choice of the table's columns.
 */
import type { Instance } from '../../../client/src/berth.ts';
import { Field, Select } from '../ui/field.tsx';
import { COLUMNS, stateOf } from './instance-table.tsx';

interface Filter {
  /** A part of a name, an id or a label. */
  readonly text: string;
  /** Empty: every state. */
  readonly state: string;
  /** `key=value`; empty: any. */
  readonly label: string;
}
export const NO_FILTER: Filter = { text: '', state: '', label: '' };

export interface Order {
  /** A column's. */
  readonly key: string;
  readonly descending: boolean;
}
export const NEWEST_FIRST: Order = { key: 'created', descending: true };

const labelsOf = ({ labels }: Pick<Instance, 'labels'>): readonly string[] =>
  Object.entries(labels).map(([key, value]) => `${key}=${value}`);

function fits(instance: Instance, { text, state, label }: Filter): boolean {
  if (state !== '' && stateOf(instance) !== state) return false;
  const labels = labelsOf(instance);
  if (label !== '' && !labels.includes(label)) return false;
  const wanted = text.trim().toLowerCase();
  return [instance.name, instance.id, ...labels].some((word) => word.toLowerCase().includes(wanted));
}

/** Equal rows keep the list's order: newest first. */
export function selectInstances(
  list: readonly Instance[],
  filter: Filter,
  { key, descending }: Order,
): readonly Instance[] {
  const found = list.filter((each) => fits(each, filter));
  const sortBy = COLUMNS.find((column) => column.key === key)?.sort;
  if (sortBy === undefined) return found;
  const sign = descending ? -1 : 1;
  return found.toSorted((a, b) => {
    const [x, y] = [sortBy(a), sortBy(b)];
    return x === y ? 0 : x < y ? -sign : sign;
  });
}

/** The distinct values of the list, sorted: the choices of a filter. */
function choicesOf(list: readonly Instance[], of: (each: Instance) => readonly string[]): string[] {
  return [...new Set(list.flatMap(of))].sort();
}

interface FiltersProps {
  readonly list: readonly Instance[];
  readonly filter: Filter;
  readonly onFilter: (filter: Filter) => void;
}

/** The fields for search, state and label. Without any label there is no field for it. */
export function Filters({ list, filter, onFilter }: FiltersProps) {
  const labels = choicesOf(list, labelsOf);
  const states = choicesOf(list, (each) => [stateOf(each)]);
  return (
    <>
      <Field
        label="Search"
        type="search"
        placeholder="Name, id or label"
        value={filter.text}
        onInput={(event) => onFilter({ ...filter, text: event.currentTarget.value })}
      />
      <Choice
        label="State"
        all="All states"
        values={states}
        value={filter.state}
        onValue={(state) => onFilter({ ...filter, state })}
      />
      {(labels.length > 0 || filter.label !== '') && (
        <Choice
          label="Label"
          all="All labels"
          values={labels}
          value={filter.label}
          onValue={(label) => onFilter({ ...filter, label })}
        />
      )}
    </>
  );
}

interface ChoiceProps {
  readonly label: string;
  readonly all: string;
  readonly values: readonly string[];
  readonly value: string;
  readonly onValue: (value: string) => void;
}

function Choice({ label, all, values, value, onValue }: ChoiceProps) {
  // The chosen value stays a choice when the last instance with it changes.
  const shown = value === '' || values.includes(value) ? values : [...values, value];
  return (
    <Select label={label} value={value} onChange={(event) => onValue(event.currentTarget.value)}>
      <option value="">{all}</option>
      {shown.map((each) => (
        <option key={each} value={each}>
          {each}
        </option>
      ))}
    </Select>
  );
}

/** Where the table is too narrow for most headings. */
const ORDERS: readonly (Order & { readonly name: string })[] = [
  { name: 'Newest first', ...NEWEST_FIRST },
  { name: 'Name', key: 'name', descending: false },
  { name: 'State', key: 'state', descending: false },
  { name: 'Most unsaved first', key: 'saved', descending: true },
  { name: 'Most memory first', key: 'memory', descending: true },
];

interface OrderProps {
  readonly order: Order;
  readonly onOrder: (order: Order) => void;
}

export function OrderChoice({ order, onOrder }: OrderProps) {
  const at = ORDERS.findIndex(({ key, descending }) => key === order.key && descending === order.descending);
  return (
    <div class="narrow-only">
      <Select
        label="Sort"
        value={String(at)}
        onChange={({ currentTarget }) => onOrder(ORDERS[Number(currentTarget.value)] ?? NEWEST_FIRST)}
      >
        {at === -1 && <option value="-1">By a heading</option>}
        {ORDERS.map(({ name }, nth) => (
          <option key={name} value={String(nth)}>
            {name}
          </option>
        ))}
      </Select>
    </div>
  );
}

interface ColumnChoiceProps {
  readonly shown: readonly string[];
  readonly onShown: (keys: readonly string[]) => void;
}

export function ColumnChoice({ shown, onShown }: ColumnChoiceProps) {
  return (
    <details class="column-choice wide-only">
      <summary>Columns</summary>
      <fieldset>
        <legend class="hidden">Shown columns</legend>
        {COLUMNS.slice(1).map(({ key, head }) => (
          <label key={key}>
            <input
              type="checkbox"
              checked={shown.includes(key)}
              onChange={({ currentTarget }) =>
                onShown(currentTarget.checked ? [...shown, key] : shown.filter((each) => each !== key))
              }
            />
            {head}
          </label>
        ))}
      </fieldset>
    </details>
  );
}
