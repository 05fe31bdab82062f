/** Search, filters by state and label, and the choice of columns. */
import type { Instance } from '../../../client/src/berth.ts';
import { Field, Select } from '../ui/field.tsx';
import { COLUMNS, stateOf } from './columns.tsx';
import { choicesOf, type Filter, labelsOf } from './select-instances.ts';

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
