/** Sets a secret, or replaces its value and hosts. */
import type { Instance, Secret } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { Field, TextArea } from '../ui/field.tsx';
import { FormDialog } from '../ui/form.tsx';
import { tell } from '../ui/toasts.tsx';

interface Props {
  readonly instance: Instance;
  /** Null: a new one. */
  readonly secret: Secret | null;
  readonly onClose: () => void;
  readonly onDone: () => Promise<void>;
}

export function SecretDialog({ instance: { id, name: of }, secret, onClose, onDone }: Props) {
  const set = async (form: FormData) => {
    const name = secret?.name ?? String(form.get('name')).trim();
    const hosts = String(form.get('hosts'))
      .split(/[\s,]+/)
      .filter((each) => each !== '');
    await call('setSecret', { path: { id, name }, body: { value: String(form.get('value')), hosts } });
    tell('good', `Set ${name}. New sessions have it within 10 s.`);
    await onDone();
  };
  const title = secret === null ? `Set a secret of ${of}` : `Replace the value of ${secret.name}`;
  return (
    <FormDialog title={title} verb="Set" onClose={onClose} work={set}>
      {(issues) => (
        <>
          {secret === null && (
            <Field
              label="Name"
              name="name"
              required
              maxLength={64}
              placeholder="OPENAI_API_KEY"
              autocapitalize="characters"
              spellcheck={false}
              autofocus
              hint="Capital letters, digits and _. In the guest, BERTH_SECRET_ and this name is the variable."
              issue={issues['name']}
            />
          )}
          <Field
            label="Value"
            name="value"
            type="password"
            required
            autocomplete="off"
            spellcheck={false}
            autofocus={secret !== null}
            hint="It is never shown again."
            issue={issues['value']}
          />
          <TextArea
            label="Hosts"
            name="hosts"
            required
            rows={3}
            spellcheck={false}
            defaultValue={secret?.hosts.join('\n') ?? ''}
            hint="One a line, such as api.openai.com or *.example.com. Only they get the value."
            issue={issues['hosts']}
          />
        </>
      )}
    </FormDialog>
  );
}
