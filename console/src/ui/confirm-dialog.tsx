/** Asks before an irreversible action; with `word`, the user must type that word. */
import type { ComponentChildren } from 'preact';
import { Field } from './field.tsx';
import { FormDialog } from './form.tsx';

/** A pattern that only this text matches. */
function literally(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&');
}

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
  return (
    <FormDialog {...rest} danger={!harmless}>
      {() => (
        <>
          {children}
          {word !== undefined && (
            <Field
              label={`Type ${word} to confirm`}
              name="confirmation"
              required
              pattern={literally(word)}
              title={`Type exactly ${word}`}
              autocomplete="off"
              spellcheck={false}
              autofocus
            />
          )}
        </>
      )}
    </FormDialog>
  );
}
