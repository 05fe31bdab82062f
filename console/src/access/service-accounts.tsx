/** Service accounts: owners of API keys that are not people. */
import { useState } from 'preact/hooks';
import type { ServiceAccount } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { Button } from '../ui/button.tsx';
import { Field } from '../ui/field.tsx';
import { FormDialog } from '../ui/form.tsx';
import { ListTable } from '../ui/loaded-list.tsx';
import { Section } from '../ui/page.tsx';
import { SecretDialog } from '../ui/secret-dialog.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-list.ts';
import { CreateKeyDialog, type MadeKey } from './create-key-dialog.tsx';
import { ScopeChoice } from './scope-choice.tsx';
import { scopeOf } from './scopes.ts';

export function ServiceAccounts() {
  const [creating, setCreating] = useState(false);
  const [holder, setHolder] = useState<ServiceAccount | null>(null);
  const [made, setMade] = useState<MadeKey | null>(null);
  const list = useList('service-accounts', (query) => call('listServiceAccounts', { query }));
  return (
    <Section
      title="Service accounts"
      lead="For programs such as continuous integration. Their API keys belong to no person, so they keep working when a member leaves."
      actions={<Button onClick={() => setCreating(true)}>New service account</Button>}
    >
      <ListTable
        list={list}
        lines={1}
        empty={<p class="panel dim">No service accounts yet.</p>}
        columns={[
          { head: 'Name', cell: ({ name }) => name },
          { head: 'Scope', class: 'wide-only', cell: ({ scope }) => <code class="wrap">{scope}</code> },
          { head: 'Created', class: 'wide-only nowrap', cell: (account) => <Time at={account.created_at} /> },
        ]}
        actions={[
          { name: 'New key', about: ({ name }) => `New key of ${name}`, kind: 'plain', work: setHolder },
          {
            name: 'Delete',
            about: ({ name }) => `Delete ${name}`,
            warning: 'All its API keys stop working at once.',
            work: ({ id }) => call('deleteServiceAccount', { path: { id } }),
          },
        ]}
      />
      {creating && <CreateAccount onClose={() => setCreating(false)} onMade={list.reload} />}
      {holder && (
        <CreateKeyDialog
          holder={holder}
          onClose={() => setHolder(null)}
          onMade={async (key) => setMade(key)}
        />
      )}
      {made && (
        <SecretDialog
          title={`API key ${made.name}`}
          secret={made.key}
          label="Copy the API key"
          onClose={() => setMade(null)}
        >
          <p>An API key of a service account.</p>
        </SecretDialog>
      )}
    </Section>
  );
}

interface CreateProps {
  readonly onClose: () => void;
  readonly onMade: () => Promise<void>;
}

function CreateAccount({ onClose, onMade }: CreateProps) {
  const work = async (form: FormData) => {
    const body = { name: String(form.get('name')).trim(), scope: scopeOf(form, '*') };
    await call('createServiceAccount', { body });
    await onMade();
  };
  return (
    <FormDialog title="New service account" verb="Create" onClose={onClose} work={work} wide>
      {(issues) => (
        <>
          <Field
            label="Name"
            name="name"
            required
            autofocus
            maxLength={100}
            placeholder="ci"
            issue={issues['name']}
          />
          <ScopeChoice issue={issues['scope']} />
        </>
      )}
    </FormDialog>
  );
}
