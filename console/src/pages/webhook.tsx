/** One webhook: its settings and its deliveries. */
import { useState } from 'preact/hooks';
import type { Webhook } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { attempt } from '../attempt.ts';
import { leads } from '../live/membership.ts';
import { navigate } from '../router.ts';
import { Button } from '../ui/button.tsx';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { Icon } from '../ui/icon.tsx';
import { Loaded } from '../ui/page.tsx';
import { SecretDialog } from '../ui/secret-dialog.tsx';
import { Time } from '../ui/time.tsx';
import { useQuery } from '../use-query.ts';
import { Deliveries } from '../webhooks/deliveries.tsx';
import { WebhookDialog } from '../webhooks/webhook-dialog.tsx';
import { WebhookStatus } from '../webhooks/webhook-status.tsx';

const GRACE_S = 86_400;

export function WebhookPage({ id }: { readonly id: string }) {
  const query = useQuery(`webhook ${id}`, () => call('getWebhook', { path: { id } }));
  return <Loaded query={query}>{(webhook) => <Found webhook={webhook} onChanged={query.put} />}</Loaded>;
}

interface Props {
  readonly webhook: Webhook;
  readonly onChanged: (webhook: Webhook) => void;
}

function Found({ webhook, onChanged }: Props) {
  const { id, name, url, events, status, disabled_reason, failing_since } = webhook;
  const [asked, setAsked] = useState<'change' | 'delete' | 'rotate' | null>(null);
  const [secret, setSecret] = useState<string | null>(null);
  const [sent, setSent] = useState(0);
  const close = () => setAsked(null);
  const ping = async () => {
    await call('pingWebhook', { path: { id }, body: {} });
    setSent(sent + 1);
  };
  const toggle = async () => {
    const body = { status: status === 'enabled' ? 'disabled' : 'enabled' } as const;
    onChanged(await call('changeWebhook', { path: { id }, body }));
  };
  return (
    <>
      <header class="page-head">
        <div>
          <a class="crumb" href="/webhooks">
            <Icon name="back" />
            Webhooks
          </a>
          <div class="title-line">
            <h1>{name}</h1>
            <WebhookStatus webhook={webhook} />
          </div>
          <p class="lead">
            <code class="wrap">{url}</code>
          </p>
          <p class="lead">{events.includes('*') ? 'All events' : events.join(', ')}</p>
          {failing_since !== null && (
            <p class="reason bad">
              Nothing but failures since <Time at={failing_since} />
            </p>
          )}
          {disabled_reason !== null && <p class="reason bad">Disabled: {disabled_reason}</p>}
        </div>
        {leads() && (
          <div class="page-actions">
            <Button
              onClick={() => attempt(ping)}
              reason={status === 'disabled' ? 'Enable it first.' : undefined}
            >
              Send a ping
            </Button>
            <Button onClick={() => setAsked('change')}>Change</Button>
            <Button onClick={() => attempt(toggle)}>{status === 'enabled' ? 'Disable' : 'Enable'}</Button>
            <Button onClick={() => setAsked('rotate')}>New secret</Button>
            <Button kind="danger" onClick={() => setAsked('delete')}>
              Delete
            </Button>
          </div>
        )}
      </header>
      {leads() ? (
        <Deliveries webhook={webhook} sent={sent} />
      ) : (
        <p class="panel dim">Only owners and admins see the deliveries.</p>
      )}
      {asked === 'change' && (
        <WebhookDialog
          of={webhook}
          onClose={close}
          work={async (body) => onChanged(await call('changeWebhook', { path: { id }, body }))}
        />
      )}
      {asked === 'rotate' && (
        <ConfirmDialog
          title={`New secret for ${name}`}
          verb="Make a new secret"
          harmless
          onClose={close}
          work={async () => {
            const made = await call('rotateWebhookSecret', {
              path: { id },
              body: { grace_seconds: GRACE_S },
            });
            setSecret(made.secret);
          }}
        >
          <p>For a day both secrets sign, so that your server can change over without a gap.</p>
        </ConfirmDialog>
      )}
      {asked === 'delete' && (
        <ConfirmDialog
          title={`Delete ${name}`}
          verb="Delete"
          onClose={close}
          work={async () => {
            await call('deleteWebhook', { path: { id } });
            navigate('/webhooks');
          }}
        >
          <p>Its deliveries stop, and the list of past deliveries is deleted.</p>
        </ConfirmDialog>
      )}
      {secret !== null && (
        <SecretDialog
          title={`New secret of ${name}`}
          secret={secret}
          label="Copy the secret"
          onClose={() => setSecret(null)}
        >
          <p>The secret before it goes on for a day.</p>
        </SecretDialog>
      )}
    </>
  );
}
