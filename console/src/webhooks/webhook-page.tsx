/**
 * The page of one webhook: its settings, its secret, and its deliveries. A user can change, disable or delete it, send
 * a ping, and send past events again.
 */
import { useState } from 'preact/hooks';
import type { Webhook } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { plural } from '../format.ts';
import { leads } from '../live/membership.ts';
import { navigate } from '../router.ts';
import { Button } from '../ui/button.tsx';
import { SecretDialog } from '../ui/dialog.tsx';
import { Select } from '../ui/field.tsx';
import { ConfirmDialog, FormDialog } from '../ui/form.tsx';
import { Icon } from '../ui/icon.tsx';
import { Loaded } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { tell } from '../ui/toasts.tsx';
import { attempt, readThenChange, requireSeen } from '../use-action.ts';
import { useQuery } from '../use-query.ts';
import { Deliveries } from './deliveries.tsx';
import { WebhookDialog, WebhookStatus } from './webhook-dialog.tsx';

const GRACE_S = 86_400;
const DISABLED: Readonly<Record<string, string>> = {
  requested: 'Disabled by an owner or admin. It gets no events until it is enabled.',
  gone: 'Disabled, because its server answered 410 (Gone).',
  failing: 'Disabled, because every delivery failed for five days.',
};

export function WebhookPage({ id }: { readonly id: string }) {
  const query = useQuery(`webhook ${id}`, () => call('getWebhook', { path: { id } }));
  return <Loaded query={query}>{(webhook) => <Found webhook={webhook} onChanged={query.put} />}</Loaded>;
}

interface FoundProps {
  readonly webhook: Webhook;
  readonly onChanged: (webhook: Webhook) => void;
}

function Found({ webhook, onChanged }: FoundProps) {
  const { id, name, url, events, status, disabled_reason, failing_since } = webhook;
  const [asked, setAsked] = useState<'edit' | 'delete' | 'rotate' | 'replay' | null>(null);
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
              Every delivery fails. The first failed <Time at={failing_since} />.
            </p>
          )}
          {disabled_reason !== null && (
            <p class="reason bad">{DISABLED[disabled_reason] ?? disabled_reason}</p>
          )}
        </div>
        {leads() && (
          <div class="page-actions">
            <Button
              onClick={() => attempt(ping)}
              reason={status === 'disabled' ? 'Enable it first.' : undefined}
            >
              Send a ping
            </Button>
            {status === 'enabled' && <Button onClick={() => setAsked('replay')}>Replay</Button>}
            <Button onClick={() => setAsked('edit')}>Edit</Button>
            <Button onClick={() => attempt(toggle)}>{status === 'enabled' ? 'Disable' : 'Enable'}</Button>
            <Button onClick={() => setAsked('rotate')}>Rotate secret</Button>
            <Button kind="danger" onClick={() => setAsked('delete')}>
              Delete
            </Button>
          </div>
        )}
      </header>
      {leads() ? (
        <Deliveries webhook={webhook} sent={sent} />
      ) : (
        <p class="panel dim">Only owners and admins may see the deliveries.</p>
      )}
      {asked === 'edit' && (
        <WebhookDialog
          of={webhook}
          onClose={close}
          work={async (body) => {
            const changed = await readThenChange(
              (options) => call('getWebhook', { path: { id } }, options),
              (now, options) => {
                requireSeen(now, webhook, body, onChanged);
                return call('changeWebhook', { path: { id }, body }, options);
              },
            );
            onChanged(changed);
          }}
        />
      )}
      {asked === 'replay' && (
        <ReplayDialog webhook={webhook} onClose={close} onSent={() => setSent(sent + 1)} />
      )}
      {asked === 'rotate' && (
        <ConfirmDialog
          title={`Rotate the secret of ${name}`}
          verb="Rotate secret"
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
          <p>
            Berth makes a new secret. For a day both secrets sign, so that your server can change to the new
            one without refusing requests.
          </p>
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
          <p>It gets no more events, and its past deliveries are deleted.</p>
        </ConfirmDialog>
      )}
      {secret !== null && (
        <SecretDialog
          title={`New secret of ${name}`}
          secret={secret}
          label="Copy the secret"
          onClose={() => setSecret(null)}
        >
          <p>The previous secret signs too for a day.</p>
        </SecretDialog>
      )}
    </>
  );
}

interface ReplayDialogProps {
  readonly webhook: Webhook;
  readonly onClose: () => void;
  readonly onSent: () => void;
}

const HOUR_MS = 3_600_000;
const RANGES: readonly (readonly [hours: number, label: string])[] = [
  [1, 'The last hour'],
  [24, 'The last 24 hours'],
  [7 * 24, 'The last 7 days'],
  [26 * 24, 'The last 26 days'],
];

/** Sends the events since a time again, also those that a disabled webhook missed. */
function ReplayDialog({ webhook: { id, name }, onClose, onSent }: ReplayDialogProps) {
  const send = async (form: FormData) => {
    const since = new Date(Date.now() - Number(form.get('since')) * HOUR_MS).toISOString();
    const { count } = await call('replayWebhook', { path: { id }, body: { since } });
    tell('good', count === 0 ? 'There is no event to send.' : `Sending ${plural(count, 'event')} again.`);
    onSent();
  };
  return (
    <FormDialog title={`Replay events to ${name}`} verb="Replay" onClose={onClose} work={send}>
      <p>
        Sends every event of the chosen time again that this webhook asks for, in order, also those that it
        missed while it was disabled. Your server recognises repeated events by their webhook-id.
      </p>
      <Select label="Events of" name="since" defaultValue="24">
        {RANGES.map(([hours, label]) => (
          <option key={hours} value={hours}>
            {label}
          </option>
        ))}
      </Select>
    </FormDialog>
  );
}
