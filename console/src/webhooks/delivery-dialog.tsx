/** One delivery: its event, its request, and the answer to each attempt. It can be sent again. */
import { useEffect } from 'preact/hooks';
import type { Webhook, WebhookDelivery, WebhookDeliveryDetail } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { exactly } from '../format.ts';
import { Button } from '../ui/button.tsx';
import { Dialog, DialogActions } from '../ui/dialog.tsx';
import { Failure } from '../ui/failure.tsx';
import { Icon } from '../ui/icon.tsx';
import { Loaded } from '../ui/page.tsx';
import { useAction } from '../use-action.ts';
import { useQuery } from '../use-query.ts';
import { aboutOf } from './delivery-event.tsx';
import { DeliveryStatus } from './delivery-status.tsx';
import { HttpMessage } from './http-message.tsx';

const EVERY_MS = 3_000;

interface Props {
  readonly webhook: Webhook;
  readonly delivery: WebhookDelivery;
  readonly onClose: () => void;
  readonly onSent: () => void;
}

export function DeliveryDialog({ webhook, delivery, onClose, onSent }: Props) {
  const path = { id: webhook.id, delivery_id: delivery.id };
  const query = useQuery(`delivery ${delivery.id}`, () => call('getWebhookDelivery', { path }));
  const { data, reload } = query;
  useEffect(() => {
    if (data?.status !== 'pending') return undefined;
    const timer = setInterval(() => void reload(), EVERY_MS);
    return () => clearInterval(timer);
  }, [data?.status, reload]);
  const sending = useAction(async () => {
    await call('redeliverWebhookDelivery', { path, body: {} });
    await reload();
    onSent();
  });
  return (
    <Dialog title={aboutOf(delivery)} onClose={onClose} wide>
      <div class="dialog-body">
        <Loaded query={query} lines={8}>
          {(found) => <Detail delivery={found} />}
        </Loaded>
      </div>
      <DialogActions>
        <Failure text={sending.error} />
        <Button onClick={onClose}>Close</Button>
        <Button kind="primary" busy={sending.busy} onClick={() => void sending.run()}>
          <Icon name="restart" />
          Redeliver
        </Button>
      </DialogActions>
    </Dialog>
  );
}

function Detail({ delivery }: { readonly delivery: WebhookDeliveryDetail }) {
  const { status, event_id, created_at, next_attempt_at, request, attempts, attempt_count } = delivery;
  return (
    <>
      <dl class="facts">
        <div>
          <dt>Status</dt>
          <dd>
            <DeliveryStatus status={status} />
          </dd>
        </div>
        <div>
          <dt>Created</dt>
          <dd>{exactly(created_at)}</dd>
        </div>
        {next_attempt_at !== null && (
          <div>
            <dt>Next attempt</dt>
            <dd>{exactly(next_attempt_at)}</dd>
          </div>
        )}
        <div class="wide">
          <dt>webhook-id</dt>
          <dd>
            <code class="wrap">{event_id}</code>
          </dd>
        </div>
      </dl>
      <h3>{attempt_count > attempts.length ? `The last ${attempts.length} attempts` : 'Attempts'}</h3>
      {attempts.length === 0 && <p class="dim">None yet.</p>}
      <ol class="attempts">
        {attempts.toReversed().map((each) => (
          <li key={each.number}>
            <Attempt attempt={each} request_url={request?.url} />
          </li>
        ))}
      </ol>
      <h3>{attempts.length === 0 ? 'Request, as it would be sent now' : 'Request of the last attempt'}</h3>
      {request === null ? (
        <p class="dim">The event is older than 30 days, so its request is no longer known.</p>
      ) : (
        <HttpMessage
          first={`${request.method} ${request.url}`}
          headers={request.headers}
          body={request.body}
        />
      )}
    </>
  );
}

interface AttemptProps {
  readonly attempt: WebhookDeliveryDetail['attempts'][number];
  readonly request_url: string | undefined;
}

function Attempt({ attempt, request_url }: AttemptProps) {
  const { number, at, status, latency_ms, error, url, response_headers, response } = attempt;
  return (
    <>
      <p>
        <strong>{`${number}.`}</strong> {exactly(at)} · {status ?? 'no answer'} · {latency_ms} ms
        {error !== null && <span class="bad"> · {error}</span>}
      </p>
      {url !== request_url && (
        <p class="dim">
          to <code class="wrap">{url}</code>
        </p>
      )}
      {status !== null && (
        <HttpMessage first={`Answer: ${status}`} headers={response_headers} body={response} />
      )}
    </>
  );
}
