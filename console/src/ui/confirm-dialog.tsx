/** Asks before an irreversible action; with `word`, the user must type that word. */
import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { Field } from './field.tsx';
import { FormDialog } from './form.tsx';

interface Props {
  readonly title: string;
  readonly verb: string;
  readonly children: ComponentChildren;
  readonly word?: string;
  readonly harmless?: boolean;
  readonly onClose: () => void;
  readonly work: (form: FormData) => Promise<void>;
}

export function ConfirmDialog({ children, word, harmless = false, ...rest }: Props) {
  const [typed, setTyped] = useState('');
  return (
    <FormDialog {...rest} danger={!harmless} disabled={word !== undefined && typed !== word}>
      {() => (
        <>
          {children}
          {word !== undefined && (
            <Field
              label={`Type ${word} to confirm`}
              value={typed}
              autocomplete="off"
              spellcheck={false}
              autofocus
              onInput={(event) => setTyped(event.currentTarget.value)}
            />
          )}
        </>
      )}
    </FormDialog>
  );
}
