/** API keys, one's own and those of service accounts. */
import { useState } from 'preact/hooks';
import type { ApiKey } from '../../../client/src/berth.ts';
import { CreateKeyDialog, type MadeKey } from '../access/create-key-dialog.tsx';
import { ServiceAccounts } from '../access/service-accounts.tsx';
import { call } from '../api.ts';
import { leads } from '../live/membership.ts';
import { Button } from '../ui/button.tsx';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { Icon } from '../ui/icon.tsx';
import { More } from '../ui/more.tsx';
import { Empty, Loaded, PageHead } from '../ui/page.tsx';
import { SecretDialog } from '../ui/secret-dialog.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-list.ts';

type Asked = { readonly what: 'rotate' | 'revoke'; readonly key: ApiKey } | null;

export function ApiKeysPage() {
  const [creating, setCreating] = useState(false);
  const [asked, setAsked] = useState<Asked>(null);
  const [made, setMade] = useState<MadeKey | null>(null);
  const list = useList('api-keys', (cursor) =>
    call('listApiKeys', { query: cursor === undefined ? {} : { cursor } }),
  );
  const create = (
    <Button kind="primary" onClick={() => setCreating(true)}>
      <Icon name="plus" />
      New API key
    </Button>
  );
  const close = () => setAsked(null);
  return (
    <>
      <PageHead
        title="API keys"
        lead="For programs and for the command line. A key acts in this organisation, and ends with the membership of who made it."
        actions={create}
      />
      <Loaded query={list}>
        {(keys) =>
          keys.length === 0 ? (
            <Empty icon="code" title="No API keys yet">
              <p>
                A key lets a program do what you may do, or less. <code>berth login</code> makes one for the
                command line.
              </p>
              {create}
            </Empty>
          ) : (
            <Table keys={keys} onAsk={(what, key) => setAsked({ what, key })} />
          )
        }
      </Loaded>
      <More more={list.more} />
      {leads() && <ServiceAccounts />}
      {creating && (
        <CreateKeyDialog
          onClose={() => setCreating(false)}
          onMade={async (key) => {
            setMade(key);
            await list.reload();
          }}
        />
      )}
      {asked?.what === 'revoke' && (
        <ConfirmDialog
          title={`Revoke ${asked.key.name}`}
          verb="Revoke"
          onClose={close}
          work={async () => {
            await call('revokeApiKey', { path: { id: asked.key.id } });
            await list.reload();
          }}
        >
          <p>Requests with it are refused from now on, and its streams end.</p>
        </ConfirmDialog>
      )}
      {asked?.what === 'rotate' && (
        <ConfirmDialog
          title={`Rotate ${asked.key.name}`}
          verb="Rotate"
          onClose={close}
          work={async () => {
            setMade(await call('rotateApiKey', { path: { id: asked.key.id }, body: {} }));
            await list.reload();
          }}
        >
          <p>The key gets a new secret under the same id. The secret of now ends at once.</p>
        </ConfirmDialog>
      )}
      {made && (
        <SecretDialog
          title={`API key ${made.name}`}
          secret={made.key}
          label="Copy the API key"
          onClose={() => setMade(null)}
        >
          <p>
            It goes into the header <code>Authorization: Bearer …</code>, or into <code>BERTH_API_KEY</code>.
          </p>
        </SecretDialog>
      )}
    </>
  );
}

function Table({
  keys,
  onAsk,
}: {
  readonly keys: readonly ApiKey[];
  readonly onAsk: (what: 'rotate' | 'revoke', key: ApiKey) => void;
}) {
  return (
    <table class="table">
      <thead>
        <tr>
          <th>Name</th>
          <th class="wide-only">Key</th>
          <th class="wide-only">Scope</th>
          <th>Last used</th>
          <th class="wide-only">Ends</th>
          <th class="end">
            <span class="hidden">Actions</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {keys.map((key) => (
          <tr key={key.id}>
            <td>
              {key.name} {key.service_account_id !== null && <span class="tag">service account</span>}
            </td>
            <td class="wide-only nowrap">
              <code>
                {key.prefix}…{key.last4}
              </code>
            </td>
            <td class="wide-only">
              <code class="wrap">{key.scope}</code>
            </td>
            <td class="nowrap">
              <Time at={key.last_used_at} />
            </td>
            <td class="wide-only nowrap">
              <Time at={key.expires_at} />
            </td>
            <td class="end">
              <div class="actions">
                <Button
                  small
                  kind="quiet"
                  aria-label={`Rotate ${key.name}`}
                  onClick={() => onAsk('rotate', key)}
                >
                  Rotate
                </Button>
                <Button
                  small
                  kind="quiet"
                  aria-label={`Revoke ${key.name}`}
                  onClick={() => onAsk('revoke', key)}
                >
                  Revoke
                </Button>
              </div>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
