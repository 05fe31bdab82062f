/**
 * The list of a webhook's deliveries, and the dialog that shows a delivery's request and attempts, and sends it again.
 */
import { useEffect, useState } from 'preact/hooks';
import type { Webhook, WebhookDelivery, WebhookDeliveryDetail } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { exactly, plural } from '../format.ts';
import { Button } from '../ui/button.tsx';
import { Dialog, DialogActions } from '../ui/dialog.tsx';
import { Icon } from '../ui/icon.tsx';
import { Empty, Failure, Loaded, Section } from '../ui/page.tsx';
import { ListTable } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';
import { useAction } from '../use-action.ts';
import { useList, useQuery, useReloads } from '../use-query.ts';

const EVERY_MS = 3_000;
type Status = WebhookDelivery['status'];

/** @param sent counts the pings, after which the list is read again */
export function Deliveries({ webhook, sent }: { readonly webhook: Webhook; readonly sent: number }) {
  const { id } = webhook;
  const [status, setStatus] = useState<Status | ''>('');
  const [opened, setOpened] = useState<WebhookDelivery | null>(null);
  const list = useList(
    `deliveries ${id} ${status}`,
    (query) =>
      call('listWebhookDeliveries', {
        path: { id },
        query: { limit: 25, ...(status === '' ? {} : { status }), ...query },
      }),
    ({ kind }) => kind === 'event',
  );
  const { reload } = list;
  const pending = list.data?.some((each) => each.status === 'pending') ?? false;
  useEffect(() => void reload(), [sent]);
  useReloads(reload, pending ? EVERY_MS : null);
  return (
    <Section
      title="Deliveries"
      lead="A failed delivery is sent again: ten attempts in about two days. Deliveries are kept for 14 days."
      actions={<StatusFilter status={status} onChange={setStatus} />}
    >
      <ListTable
        list={list}
        empty={
          <Empty icon="webhook" title={status === '' ? 'No deliveries yet' : `No ${status} deliveries`}>
            <p>
              {status === '' ? 'Send a ping to see whether your server answers.' : 'Choose another status.'}
            </p>
          </Empty>
        }
        columns={[
          { head: 'Event', cell: (delivery) => <DeliveryEvent delivery={delivery} /> },
          { head: 'Status', below: true, cell: ({ status: each }) => <DeliveryStatus status={each} /> },
          { head: 'Last attempt', below: true, cell: lastAttempt },
          { head: 'When', class: 'nowrap', below: true, cell: ({ created_at }) => <Time at={created_at} /> },
        ]}
        actions={[
          {
            name: 'Details',
            about: (each) => `Details of ${aboutOf(each)}`,
            work: (each) => setOpened(each),
          },
        ]}
      />
      {opened && (
        <DeliveryDialog
          webhook={webhook}
          delivery={opened}
          onClose={() => setOpened(null)}
          onSent={() => void reload()}
        />
      )}
    </Section>
  );
}

function lastAttempt({ attempts, attempt_count }: WebhookDelivery) {
  const last = attempts.at(-1);
  if (last === undefined) return <span class="dim">none yet</span>;
  return (
    <>
      {last.status ?? last.error ?? 'no answer'} <span class="dim">({last.latency_ms} ms)</span>
      {attempt_count > 1 && <span class="dim">, {plural(attempt_count, 'attempt')}</span>}
    </>
  );
}

interface FilterProps {
  readonly status: Status | '';
  readonly onChange: (status: Status | '') => void;
}

function StatusFilter({ status, onChange }: FilterProps) {
  return (
    <select
      aria-label="Status"
      value={status}
      onChange={({ currentTarget }) => onChange(currentTarget.value as Status | '')}
    >
      <option value="">All deliveries</option>
      <option value="pending">Pending</option>
      <option value="delivered">Delivered</option>
      <option value="failed">Failed</option>
    </select>
  );
}

interface DeliveryDialogProps {
  readonly webhook: Webhook;
  readonly delivery: WebhookDelivery;
  readonly onClose: () => void;
  readonly onSent: () => void;
}

/** One delivery: its event, its request, and the answer to each attempt. It can be sent again. */
function DeliveryDialog({ webhook, delivery, onClose, onSent }: DeliveryDialogProps) {
  const path = { id: webhook.id, delivery_id: delivery.id };
  const query = useQuery(`delivery ${delivery.id}`, () => call('getWebhookDelivery', { path }));
  const { data, reload } = query;
  useReloads(reload, data?.status === 'pending' ? EVERY_MS : null);
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

interface HttpMessageProps {
  readonly first: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/** A request or an answer: its first line, headers and body. JSON is indented. */
function HttpMessage({ first, headers, body }: HttpMessageProps) {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
  return (
    <pre class="http-message">
      {[first, ...lines].join('\n')}
      {body !== '' && `\n\n${readable(body)}`}
    </pre>
  );
}

function readable(body: string): string {
  try {
    return JSON.stringify(JSON.parse(body), null, 2);
  } catch {
    return body;
  }
}

/** `vm.started web` */
function aboutOf({ event_type, event_id, resource }: WebhookDelivery): string {
  return [event_type ?? event_id, resource?.name].filter(Boolean).join(' ');
}

/** The type of a delivery's event and what the event is about: `vm.started` of web. */
function DeliveryEvent({ delivery }: { readonly delivery: WebhookDelivery }) {
  const { event_type, resource } = delivery;
  if (event_type === null) return <span class="dim">expired, after 30 days</span>;
  return (
    <>
      <code>{event_type}</code>
      {resource !== null && (
        <div class="wrap" title={resource.id}>
          {resource.name ?? resource.id}
        </div>
      )}
    </>
  );
}

const STATES = { pending: 'starting', delivered: 'running', failed: 'failed' } as const;

function DeliveryStatus({ status }: Pick<WebhookDelivery, 'status'>) {
  return (
    <span class={`state ${STATES[status]}`}>
      <span class="dot" aria-hidden="true" />
      {status}
    </span>
  );
}
