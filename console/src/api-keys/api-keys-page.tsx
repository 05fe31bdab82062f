/**
 * The page of API keys. It creates, rotates and revokes the keys of the user and of the organisation's service
 * accounts, and creates and deletes service accounts.
 */
import { useState } from 'preact/hooks';
import type { ApiKey, ServiceAccount } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { leads } from '../live/membership.ts';
import { Button } from '../ui/button.tsx';
import { SecretDialog } from '../ui/dialog.tsx';
import { NameField } from '../ui/field.tsx';
import { FormDialog } from '../ui/form.tsx';
import { Icon } from '../ui/icon.tsx';
import { Empty, PageHead, Section } from '../ui/page.tsx';
import { type Column, ListTable } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';
import { type List, useList } from '../use-query.ts';
import { CreateKeyDialog, type MadeKey, ScopeChoice, ScopeText, scopeOf } from './create-key-dialog.tsx';

const FACTS: readonly Column<ApiKey>[] = [
  {
    head: 'Key',
    class: 'nowrap',
    below: true,
    cell: ({ prefix, last4 }) => (
      <code>
        {prefix}…{last4}
      </code>
    ),
  },
  { head: 'Permissions', below: true, cell: ({ scope }) => <ScopeText scope={scope} /> },
  {
    head: 'Last used',
    class: 'nowrap',
    below: true,
    cell: (key) => <Time at={key.last_used_at} />,
  },
  { head: 'Expires', class: 'nowrap', below: true, cell: (key) => <Time at={key.expires_at} /> },
];

/** The API keys of the user and of service accounts. */
export function ApiKeysPage() {
  const [creating, setCreating] = useState(false);
  const [made, setMade] = useState<MadeKey | null>(null);
  const list = useList(
    'api-keys',
    (query) => call('listApiKeys', { query }),
    (told) => told.kind === 'event' && told.event.type.startsWith('api_key.'),
  );
  // Others do not see the keys of service accounts.
  const accounts = useList('service-accounts', async (query) =>
    leads() ? call('listServiceAccounts', { query }) : { data: [], next_cursor: null },
  );
  const accountOf = (id: string | null) => accounts.data?.find((account) => account.id === id)?.name;
  const keyNamed = (id: string | null) => list.data?.find((key) => key.id === id)?.name;
  const names = list.data?.map(({ name }) => name) ?? [];
  const create = (
    <Button kind="primary" onClick={() => setCreating(true)}>
      <Icon name="plus" />
      New API key
    </Button>
  );
  return (
    <>
      <PageHead
        title="API keys"
        lead="For programs and for the command line. A key works in this organisation, as long as its creator is a member."
        actions={create}
      />
      <ListTable
        list={list}
        empty={
          <Empty icon="code" title="No API keys yet">
            <p>
              With a key, a program has your permissions, or some of them. <code>berth login</code> creates
              one for the command line.
            </p>
          </Empty>
        }
        columns={[
          {
            head: 'Name',
            cell: (key) => (
              <KeyName
                of={key}
                account={accountOf(key.service_account_id)}
                creator={keyNamed(key.created_by_key)}
              />
            ),
          },
          ...FACTS,
        ]}
        actions={[
          {
            name: 'Rotate',
            about: ({ name }) => `Rotate ${name}`,
            warning: 'The key gets a new secret and keeps its id. The current secret stops working at once.',
            work: async ({ id }) => setMade(await call('rotateApiKey', { path: { id }, body: {} })),
          },
          {
            name: 'Revoke',
            about: ({ name }) => `Revoke ${name}`,
            warning: 'Requests with this key are refused from now on, and its streams end.',
            option: {
              label: 'Also revoke keys created with it',
              hint: 'Every API key and SSH key created with it, directly or through other keys. Do this if the key has leaked.',
            },
            work: ({ id }, with_descendants) =>
              call('revokeApiKey', {
                path: { id },
                query: with_descendants ? { descendants: 'true' } : {},
              }),
          },
        ]}
      />
      {leads() && <ServiceAccounts list={accounts} key_names={names} />}
      {creating && (
        <CreateKeyDialog
          taken={names}
          onClose={() => setCreating(false)}
          onMade={async (key) => {
            setMade(key);
            await list.reload();
          }}
        />
      )}
      {made && (
        <SecretDialog
          title={`API key ${made.name}`}
          secret={made.key}
          label="Copy the API key"
          onClose={() => setMade(null)}
        >
          <p>
            Send it in the header <code>Authorization: Bearer …</code>, or set <code>BERTH_API_KEY</code> for
            the command line.
          </p>
        </SecretDialog>
      )}
    </>
  );
}

interface KeyNameProps {
  readonly of: ApiKey;
  /** The name of its service account, if known. */
  readonly account: string | undefined;
  /** The name of the key that created it, if it still exists. */
  readonly creator: string | undefined;
}

function KeyName({ of, account = '', creator = 'another key' }: KeyNameProps) {
  return (
    <>
      <span class="wrap">{of.name}</span>{' '}
      {of.service_account_id !== null && <span class="tag">service account {account}</span>}{' '}
      {of.created_by_key !== null && <span class="tag">created by {creator}</span>}
    </>
  );
}

interface Props {
  readonly list: List<ServiceAccount>;
  /** The names of the organisation's keys. */
  readonly key_names: readonly string[];
}

/** Service accounts: owners of API keys that are not people. */
function ServiceAccounts({ list, key_names }: Props) {
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
      <NameField what="service account" taken={taken} placeholder="ci" />
      <ScopeChoice all="All permissions" />
    </FormDialog>
  );
}
