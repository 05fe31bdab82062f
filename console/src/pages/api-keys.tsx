/** The API keys of the user and of service accounts. */
import { useState } from 'preact/hooks';
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
import { Time } from '../ui/time.tsx';
import { useList } from '../use-list.ts';

export function ApiKeysPage() {
  const [creating, setCreating] = useState(false);
  const [made, setMade] = useState<MadeKey | null>(null);
  const list = useList(
    'api-keys',
    (query) => call('listApiKeys', { query }),
    (told) => told.kind === 'event' && told.event.type.startsWith('api_key.'),
  );
  const keyNamed = (id: string) => list.data?.find((key) => key.id === id)?.name ?? 'another key';
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
            cell: ({ name, service_account_id, created_by_key }) => (
              <>
                <span class="wrap">{name}</span>{' '}
                {service_account_id !== null && <span class="tag">service account</span>}{' '}
                {created_by_key !== null && <span class="tag">created by {keyNamed(created_by_key)}</span>}
              </>
            ),
          },
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
      {leads() && <ServiceAccounts key_names={names} />}
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
