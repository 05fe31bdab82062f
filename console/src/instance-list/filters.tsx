/** Search, filters by state and label, and the choice of columns. */
import type { Instance } from '../../../client/src/berth.ts';
import { Field, Select } from '../ui/field.tsx';
import { COLUMNS, stateOf } from './columns.tsx';
import { choicesOf, type Filter, labelsOf, NEWEST_FIRST, type Order } from './select-instances.ts';

interface FiltersProps {
  readonly list: readonly Instance[];
  readonly filter: Filter;
  readonly onFilter: (filter: Filter) => void;
}

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
