/** Asks for the name of a new or renamed instance. */
import type { Generation } from '../../../client/src/berth.ts';
import { Field } from '../ui/field.tsx';
import { FormDialog } from '../ui/form.tsx';

interface Props {
  readonly generation: Generation;
  readonly onClose: () => void;
  /** null removes the name. */
  readonly work: (name: string | null) => Promise<void>;
}

export function NameDialog({ generation, onClose, work }: Props) {
  return (
    <FormDialog
      title={`Name generation ${generation.generation}`}
      verb="Save"
      onClose={onClose}
      work={(form) => work(String(form.get('name')).trim() || null)}
    >
      {(issues) => (
        <Field
          label="Name"
          name="name"
          defaultValue={generation.name ?? ''}
          maxLength={100}
          autofocus
          placeholder="before the upgrade"
          hint="A name helps you to find it; empty: none. Only a pin keeps it, however old it gets"
          issue={issues['name']}
        />
      )}
    </FormDialog>
  );
}
