/** The API keys of the user and of service accounts. */
import { useState } from 'preact/hooks';
import type { ApiKey } from '../../../client/src/generated.ts';
import { CreateKeyDialog, type MadeKey } from '../access/create-key-dialog.tsx';
import { ScopeText } from '../access/scope-text.tsx';
import { ServiceAccounts } from '../access/service-accounts.tsx';
import { call } from '../api.ts';
import { leads } from '../live/membership.ts';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { ListTable } from '../ui/loaded-list.tsx';
import { Empty, PageHead } from '../ui/page.tsx';
import { SecretDialog } from '../ui/secret-dialog.tsx';
import type { Column } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-list.ts';

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
