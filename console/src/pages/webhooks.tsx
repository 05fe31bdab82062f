/** The organisation's webhooks. */
import { useState } from 'preact/hooks';
import type { CreateWebhookResponse } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { leads } from '../live/membership.ts';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { More } from '../ui/more.tsx';
import { Empty, Loaded, PageHead } from '../ui/page.tsx';
import { SecretDialog } from '../ui/secret-dialog.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-list.ts';
import { WebhookDialog } from '../webhooks/webhook-dialog.tsx';
import { WebhookStatus } from '../webhooks/webhook-status.tsx';

export function WebhooksPage() {
  const [creating, setCreating] = useState(false);
  const [made, setMade] = useState<CreateWebhookResponse | null>(null);
  const list = useList('webhooks', (cursor) =>
    call('listWebhooks', { query: cursor === undefined ? {} : { cursor } }),
  );
  const create = (
    <Button
      kind="primary"
      disabled={!leads()}
      title={leads() ? undefined : 'Owners and admins make webhooks'}
      onClick={() => setCreating(true)}
    >
      <Icon name="plus" />
      New webhook
    </Button>
  );
  return (
    <>
      <PageHead
        title="Webhooks"
        lead="Signed requests to a server of yours whenever something happens here."
        actions={create}
      />
      <Loaded query={list}>
        {(webhooks) =>
          webhooks.length === 0 ? (
            <Empty icon="webhook" title="No webhooks yet">
              <p>
                Give the address of a server that should hear of starts, stops, flushes and failures.
                Signatures follow Standard Webhooks, so a library of your language verifies them.
              </p>
              {create}
            </Empty>
          ) : (
            <table class="table">
              <thead>
                <tr>
                  <th>Name</th>
                  <th class="wide-only">URL</th>
                  <th class="wide-only">Events</th>
                  <th>Status</th>
                  <th class="wide-only">Made</th>
                </tr>
              </thead>
              <tbody>
                {webhooks.map((webhook) => (
                  <tr key={webhook.id}>
                    <td>
                      <a class="row-name" href={`/webhooks/${webhook.id}`}>
                        {webhook.name}
                      </a>
                    </td>
                    <td class="wide-only">
                      <code class="wrap">{webhook.url}</code>
                    </td>
                    <td class="wide-only">{webhook.events.includes('*') ? 'all' : webhook.events.length}</td>
                    <td>
                      <WebhookStatus webhook={webhook} />
                    </td>
                    <td class="wide-only nowrap">
                      <Time at={webhook.created_at} />
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          )
        }
      </Loaded>
      <More more={list.more} />
      {creating && (
        <WebhookDialog
          onClose={() => setCreating(false)}
          work={async (body) => {
            setMade(await call('createWebhook', { body }));
            await list.reload();
          }}
        />
      )}
      {made && (
        <SecretDialog
          title={`Secret of ${made.name}`}
          secret={made.secret}
          label="Copy the secret"
          onClose={() => setMade(null)}
        >
          <p>Your server verifies with it that a request is from Berth.</p>
        </SecretDialog>
      )}
    </>
  );
}
