/** The name of a new thing. It warns of a name in use, because people and commands can then not tell the two apart. */
import { useState } from 'preact/hooks';
import { Field } from './field.tsx';

interface Props {
  /** What gets the name: `API key`. */
  readonly what: string;
  /** The names in use. */
  readonly taken: readonly string[];
  readonly placeholder?: string;
  readonly hint?: string;
  readonly optional?: boolean;
  readonly issue?: string | undefined;
}

export function NameField({ what, taken, optional = false, hint, ...rest }: Props) {
  const [name, setName] = useState('');
  const is_taken = taken.includes(name.trim());
  const warning = <span class="name-taken">Another {what} has this name. Choose one that differs.</span>;
  return (
    <Field
      {...rest}
      label="Name"
      name="name"
      required={!optional}
      autofocus={!optional}
      maxLength={100}
      onInput={(event) => setName(event.currentTarget.value)}
      {...(is_taken ? { hint: warning } : hint === undefined ? {} : { hint })}
    />
  );
}
