/**
 * The Secrets tab of an instance: lists, sets, replaces and deletes its secrets. The VM can use a secret, but nobody
 * can read its value.
 */
import { useState } from 'preact/hooks';
import type { Instance, Secret } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { Button } from '../ui/button.tsx';
import { Field, TextArea } from '../ui/field.tsx';
import { FormDialog } from '../ui/form.tsx';
import { Icon } from '../ui/icon.tsx';
import { Empty, Section } from '../ui/page.tsx';
import { LoadedList, Table } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';
import { tell } from '../ui/toasts.tsx';
import { useList } from '../use-query.ts';
import { whyFixed } from './actions.tsx';

interface Row extends Secret {
  readonly id: string;
}

/** Changes of secrets have no events. */
const never = () => false;

export function SecretsPanel({ instance }: { readonly instance: Instance }) {
  const { id, name } = instance;
  /** The secret whose dialog is open; 'new' for another. */
  const [open, setOpen] = useState<Secret | 'new' | null>(null);
  const list = useList(`secrets ${id}`, (query) => call('listSecrets', { path: { id }, query }), never);
  const { reload } = list;
  const remove = async (row: Row) => {
    await call('deleteSecret', { path: { id, name: row.name } });
    tell('good', `Deleted ${row.name}.`);
  };
  const fixed = whyFixed(instance);
  return (
    <Section
      title="Secrets"
      lead="The guest has a placeholder only. The host puts the value into headers of HTTPS requests to the hosts that you name."
      actions={
        <Button kind="primary" reason={fixed} onClick={() => setOpen('new')}>
          <Icon name="plus" />
          Set a secret
        </Button>
      }
    >
      <Limits />
      <LoadedList
        list={list}
        empty={
          <Empty icon="key" title="No secrets yet">
            <p>Set an API key here: programs in {name} can use it, and no search of the VM finds it.</p>
          </Empty>
        }
      >
        {(secrets) => (
          <Table<Row>
            rows={secrets.map((each) => ({ ...each, id: each.name }))}
            columns={[
              { head: 'Name', class: 'wrap', cell: (row) => <Name secret={row} /> },
              { head: 'Hosts', class: 'wrap', below: true, cell: ({ hosts }) => hosts.join(', ') },
              { head: 'Updated', class: 'wide-only', cell: ({ updated_at }) => <Time at={updated_at} /> },
            ]}
            actions={
              fixed
                ? []
                : [
                    {
                      name: ({ has_value }) => (has_value ? 'Replace' : 'Set value'),
                      about: (row) => `Replace the value of ${row.name}`,
                      work: (row) => setOpen(row),
                    },
                    {
                      name: 'Delete',
                      about: (row) => `Delete ${row.name}`,
                      warning:
                        'Requests with its placeholder no longer get the value. New sessions do not have the variable.',
                      work: remove,
                    },
                  ]
            }
            onDone={reload}
          />
        )}
      </LoadedList>
      {open !== null && (
        <SecretDialog
          instance={instance}
          secret={open === 'new' ? null : open}
          onClose={() => setOpen(null)}
          onDone={reload}
        />
      )}
    </Section>
  );
}

function Name({ secret: { name, has_value } }: { readonly secret: Secret }) {
  return (
    <>
      <code class="wrap">BERTH_SECRET_{name}</code>
      {!has_value && <p class="hint">No value yet: the fork inherited the name only.</p>}
    </>
  );
}

function Limits() {
  return (
    <div class="notice spaced">
      <p>
        The value is in no memory, disk, generation or fork of the VM, and no log or answer has it. It is not
        protected from a host that you name: one that sends a request's headers back shows the value to the
        guest. Anyone who runs programs in the VM can use the secret, as long as it is set.
      </p>
    </div>
  );
}

interface Props {
  readonly instance: Instance;
  /** Null: a new one. */
  readonly secret: Secret | null;
  readonly onClose: () => void;
  readonly onDone: () => Promise<void>;
}

/** Sets a secret, or replaces its value and hosts. */
function SecretDialog({ instance: { id, name: of }, secret, onClose, onDone }: Props) {
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
      />
      <TextArea
        label="Hosts"
        name="hosts"
        required
        rows={3}
        spellcheck={false}
        defaultValue={secret?.hosts.join('\n') ?? ''}
        hint="One a line, such as api.openai.com or *.example.com. Only they get the value."
      />
    </FormDialog>
  );
}
