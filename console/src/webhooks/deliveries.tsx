/** A webhook's deliveries, with every attempt and its answer. */
import { useEffect, useState } from 'preact/hooks';
import type { Webhook, WebhookDelivery } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { attempt } from '../attempt.ts';
import { exactly, plural } from '../format.ts';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { LoadedList } from '../ui/loaded-list.tsx';
import { Empty, Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-list.ts';

const EVERY_MS = 3_000;
const STATES = { pending: 'starting', delivered: 'running', failed: 'failed' } as const;

export function Deliveries({ webhook, sent }: { readonly webhook: Webhook; readonly sent: number }) {
  const { id } = webhook;
  const list = useList(
    `deliveries ${id}`,
    (query) => call('listWebhookDeliveries', { path: { id }, query: { limit: 25, ...query } }),
    ({ kind }) => kind === 'event',
  );
  const { reload } = list;
  const pending = list.data?.some(({ status }) => status === 'pending') ?? false;
  useEffect(() => void reload(), [sent]);
  useEffect(() => {
    if (!pending) return undefined;
    const timer = setInterval(() => void reload(), EVERY_MS);
    return () => clearInterval(timer);
  }, [pending, reload]);
  return (
    <Section title="Deliveries" lead="Failed attempts are made again by themselves for two days.">
      <LoadedList
        list={list}
        empty={
          <Empty icon="webhook" title="Nothing was sent yet">
            <p>Send a ping to see whether your server answers.</p>
          </Empty>
        }
      >
        {(deliveries) => (
          <ul class="deliveries">
            {deliveries.map((each) => (
              <Delivery key={each.id} delivery={each} webhook={webhook} onSent={reload} />
            ))}
          </ul>
        )}
      </LoadedList>
    </Section>
  );
}

interface Props {
  readonly delivery: WebhookDelivery;
  readonly webhook: Webhook;
  readonly onSent: () => Promise<void>;
}

function Delivery({ delivery, webhook, onSent }: Props) {
  const { id, event_id, event_type, status, attempts, attempt_count, next_attempt_at, created_at } = delivery;
  const [busy, setBusy] = useState(false);
  const redeliver = async () => {
    setBusy(true);
    await attempt(async () => {
      await call('redeliverWebhookDelivery', { path: { id: webhook.id, delivery_id: id }, body: {} });
      await onSent();
    });
    setBusy(false);
  };
  return (
    <li>
      <details>
        <summary>
          <span class={`state ${STATES[status]}`}>
            <span class="dot" aria-hidden="true" />
            {status}
          </span>
          <code>{event_type ?? 'event gone'}</code>
          <span class="dim">{plural(attempt_count, 'attempt')}</span>
          <span class="dim end">
            <Time at={created_at} passive />
          </span>
        </summary>
        <div class="delivery">
          <p class="dim">
            <code>webhook-id: {event_id}</code>
            {next_attempt_at !== null && status === 'pending' && (
              <> · next attempt {exactly(next_attempt_at)}</>
            )}
          </p>
          {attempts.map(({ number, at, status: answered, latency_ms, error, response }) => (
            <div key={number} class="attempt">
              <p>
                <strong>{number}</strong> {exactly(at)} · {answered ?? 'no answer'} · {latency_ms} ms
                {error !== null && <span class="bad"> · {error}</span>}
              </p>
              {response !== '' && <pre>{response}</pre>}
            </div>
          ))}
          <Button
            small
            busy={busy}
            aria-label={`Redeliver ${event_type ?? event_id}`}
            onClick={() => void redeliver()}
          >
            <Icon name="restart" />
            Redeliver
          </Button>
        </div>
      </details>
    </li>
  );
}
