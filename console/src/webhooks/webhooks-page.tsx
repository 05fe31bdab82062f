/** The page that lists the organisation's webhooks, and creates one. */
import { useState } from 'preact/hooks';
import type { CreateWebhookResponse } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { plural } from '../format.ts';
import { whyNoLead } from '../live/membership.ts';
import { Button } from '../ui/button.tsx';
import { SecretDialog } from '../ui/dialog.tsx';
import { Icon } from '../ui/icon.tsx';
import { Empty, PageHead } from '../ui/page.tsx';
import { ListTable } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-query.ts';
import { WebhookDialog, WebhookStatus } from './webhook-dialog.tsx';

export function WebhooksPage() {
  const [creating, setCreating] = useState(false);
  const [made, setMade] = useState<CreateWebhookResponse | null>(null);
  const list = useList('webhooks', (query) => call('listWebhooks', { query }));
  const create = (
    <Button kind="primary" reason={whyNoLead()} onClick={() => setCreating(true)}>
      <Icon name="plus" />
      New webhook
    </Button>
  );
  return (
    <>
      <PageHead
        title="Webhooks"
        lead="A webhook sends a signed request to your server for each event of this organisation."
        actions={create}
      />
      <ListTable
        list={list}
        empty={
          <Empty icon="webhook" title="No webhooks yet">
            <p>
              Your server learns of starts, stops, flushes and failures as they happen. The signatures follow
              Standard Webhooks, whose libraries verify them in many languages.
            </p>
          </Empty>
        }
        columns={[
          {
            head: 'Name',
            cell: ({ id, name }) => (
              <a class="row-name" href={`/webhooks/${id}`}>
                {name}
              </a>
            ),
          },
          { head: 'URL', below: true, cell: ({ url }) => <code class="wrap">{url}</code> },
          {
            head: 'Events',
            below: true,
            cell: ({ events }) => (events.includes('*') ? 'all' : plural(events.length, 'type')),
          },
          { head: 'Status', cell: (webhook) => <WebhookStatus webhook={webhook} /> },
          {
            head: 'Created',
            class: 'nowrap',
            below: true,
            cell: (webhook) => <Time at={webhook.created_at} />,
          },
        ]}
      />
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
          <p>Your server verifies with it that a request comes from Berth.</p>
        </SecretDialog>
      )}
    </>
  );
}
