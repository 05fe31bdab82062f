/** A webhook's deliveries, the newest events first. One opens with its request and answers. */
import { useEffect, useState } from 'preact/hooks';
import type { Webhook, WebhookDelivery } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { plural } from '../format.ts';
import { ListTable } from '../ui/loaded-list.tsx';
import { Empty, Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-list.ts';
import { DeliveryDialog } from './delivery-dialog.tsx';
import { aboutOf, DeliveryEvent } from './delivery-event.tsx';
import { DeliveryStatus } from './delivery-status.tsx';

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
  useEffect(() => {
    if (!pending) return undefined;
    const timer = setInterval(() => void reload(), EVERY_MS);
    return () => clearInterval(timer);
  }, [pending, reload]);
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
