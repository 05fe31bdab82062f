/** The filter of a list of events or audit entries: by type, by actor and by time. */
import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { Button } from './button.tsx';
import { Field, Select } from './field.tsx';
import { Form } from './form.tsx';

export interface LogFilterValues {
  readonly type?: string;
  readonly actor?: string;
  readonly since?: string;
  readonly until?: string;
}

interface Props {
  /** The field named `type`. */
  readonly type: ComponentChildren;
  readonly value: LogFilterValues;
  readonly onChange: (value: LogFilterValues) => void;
}

const HOUR_S = 3_600;
const RANGES: readonly (readonly [seconds: number, label: string])[] = [
  [HOUR_S, 'The last hour'],
  [24 * HOUR_S, 'The last 24 hours'],
  [7 * 24 * HOUR_S, 'The last 7 days'],
  [30 * 24 * HOUR_S, 'The last 30 days'],
];
const BETWEEN = 'between';

export function LogFilter({ type, value, onChange }: Props) {
  const [range, setRange] = useState('');
  /** Another one is another form, with empty fields. */
  const [round, setRound] = useState(0);
  const clear = () => {
    setRound(round + 1);
    setRange('');
    onChange({});
  };
  return (
    <Form
      key={round}
      class="filter"
      verb="Filter"
      work={async (form) => onChange(valuesOf(form))}
      aside={Object.keys(value).length > 0 && <Button onClick={clear}>Clear</Button>}
    >
      {type}
      <Field label="By" name="actor" placeholder="E-mail, service account or id" spellcheck={false} />
      <Select
        label="Time"
        name="range"
        value={range}
        onChange={({ currentTarget }) => setRange(currentTarget.value)}
      >
        <option value="">Any time</option>
        {RANGES.map(([seconds, label]) => (
          <option key={seconds} value={seconds}>
            {label}
          </option>
        ))}
        <option value={BETWEEN}>Between …</option>
      </Select>
      {range === BETWEEN && (
        <>
          <Field label="Since" name="since" type="datetime-local" />
          <Field label="Until" name="until" type="datetime-local" />
        </>
      )}
    </Form>
  );
}

/** Only the fields that have a value. */
function valuesOf(form: FormData): LogFilterValues {
  const text = (name: string) => String(form.get(name) ?? '').trim();
  const range_s = Number(text('range'));
  const time = (name: string) => (text(name) === '' ? '' : new Date(text(name)).toISOString());
  const values = {
    type: text('type'),
    actor: text('actor'),
    since: range_s > 0 ? new Date(Date.now() - range_s * 1_000).toISOString() : time('since'),
    until: time('until'),
  };
  return Object.fromEntries(Object.entries(values).filter(([, each]) => each !== ''));
}
