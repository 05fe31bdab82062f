/** Service accounts: owners of API keys that are not people. */
import { useState } from 'preact/hooks';
import type { ServiceAccount } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { Button } from '../ui/button.tsx';
import { FormDialog } from '../ui/form.tsx';
import { ListTable } from '../ui/loaded-list.tsx';
import { NameField } from '../ui/name-field.tsx';
import { Section } from '../ui/page.tsx';
import { SecretDialog } from '../ui/secret-dialog.tsx';
import { Time } from '../ui/time.tsx';
import type { List } from '../use-list.ts';
import { CreateKeyDialog, type MadeKey } from './create-key-dialog.tsx';
import { ScopeChoice } from './scope-choice.tsx';
import { ScopeText } from './scope-text.tsx';
import { scopeOf } from './scopes.ts';

interface Props {
  readonly list: List<ServiceAccount>;
  /** The names of the organisation's keys. */
  readonly key_names: readonly string[];
}

export function ServiceAccounts({ list, key_names }: Props) {
  const [creating, setCreating] = useState(false);
  const [holder, setHolder] = useState<ServiceAccount | null>(null);
  const [made, setMade] = useState<MadeKey | null>(null);
  const names = list.data?.map(({ name }) => name) ?? [];
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
          {
            head: 'Name',
            cell: ({ id, name }) => (
              <>
                <span class="wrap">{name}</span>
                {/* Only the id tells two of one name apart. */}
                {names.filter((each) => each === name).length > 1 && (
                  <div>
                    <code class="dim wrap">{id}</code>
                  </div>
                )}
              </>
            ),
          },
          { head: 'Permissions', below: true, cell: ({ scope }) => <ScopeText scope={scope} /> },
          {
            head: 'Created',
            class: 'nowrap',
            below: true,
            cell: (account) => <Time at={account.created_at} />,
          },
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
      {creating && <CreateAccount taken={names} onClose={() => setCreating(false)} onMade={list.reload} />}
      {holder && (
        <CreateKeyDialog
          holder={holder}
          taken={key_names}
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
  readonly taken: readonly string[];
  readonly onClose: () => void;
  readonly onMade: () => Promise<void>;
}

function CreateAccount({ taken, onClose, onMade }: CreateProps) {
  const work = async (form: FormData) => {
    const body = { name: String(form.get('name')).trim(), scope: scopeOf(form, '*') };
    await call('createServiceAccount', { body });
    await onMade();
  };
  return (
    <FormDialog title="New service account" verb="Create" onClose={onClose} work={work} wide>
      {(issues) => (
        <>
          <NameField what="service account" taken={taken} placeholder="ci" issue={issues['name']} />
          <ScopeChoice all="All permissions" issue={issues['scope']} />
        </>
      )}
    </FormDialog>
  );
}
