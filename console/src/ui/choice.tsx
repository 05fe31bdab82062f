/** One of a few values, as buttons in a row. */

interface Props<T extends string> {
  /** For screen readers. */
  readonly name: string;
  readonly options: readonly (readonly [value: T, label: string])[];
  readonly value: T;
  readonly onChoose: (value: T) => void;
}

export function Choice<T extends string>({ name, options, value, onChoose }: Props<T>) {
  return (
    <fieldset class="choice-bar">
      <legend class="hidden">{name}</legend>
      {options.map(([each, label]) => (
        <button key={each} type="button" aria-pressed={each === value} onClick={() => onChoose(each)}>
          {label}
        </button>
      ))}
    </fieldset>
  );
}
