import { addJobs } from '../db/jobs.ts';
import type { Tx } from '../db/pool.ts';
import type { NumberedEvent } from '../events/store.ts';
import type { OrgId, WebhookId } from '../lib/ids.ts';
import { insertDeliveries, type Listener, listListeners, type NewDelivery } from './delivery-store.ts';
import { sendJob } from './lanes.ts';
import { isPublic, wants } from './model.ts';

/** Makes a delivery of each event for each enabled webhook that wants it, and a job for each webhook that has one. */
export async function fanOutToWebhooks(tx: Tx, events: readonly NumberedEvent[]): Promise<void> {
  const told = events.filter(
    (event): event is NumberedEvent & { org_id: OrgId } =>
      event.org_id !== null && (isPublic(event.type) || event.type === 'webhook.ping'),
  );
  if (told.length === 0) return;
  const listeners = await listListeners(tx, [...new Set(told.map(({ org_id }) => org_id))]);
  if (listeners.length === 0) return;
  const by_org = Map.groupBy(listeners, ({ org_id }) => org_id);
  const deliveries: NewDelivery[] = [];
  const touched = new Map<WebhookId, Listener>();
  for (const event of told) {
    for (const listener of by_org.get(event.org_id) ?? []) {
      if (!isFor(event, listener)) continue;
      const { id: event_id, position, instance_id } = event;
      deliveries.push({ webhook_id: listener.id, event_id, position, instance_id });
      touched.set(listener.id, listener);
    }
  }
  await insertDeliveries(tx, deliveries);
  await addJobs(
    tx,
    [...touched.values()].map(({ id, slow }) => sendJob(id, slow)),
  );
}

function isFor({ type, data }: NumberedEvent, { id, events }: Listener): boolean {
  if (type !== 'webhook.ping') return wants(events, type);
  return (data as { webhook?: { id?: string } }).webhook?.id === id;
}
