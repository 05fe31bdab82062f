import { addJobs } from '../db/jobs.ts';
import type { Tx } from '../db/pool.ts';
import { type PlacedEvent, readEvents } from '../events/store.ts';
import type { EventId, OrgId, WebhookId } from '../lib/ids.ts';
import { insertDeliveries, type Listener, listListeners, type NewDelivery } from './delivery-store.ts';
import { sendJob } from './lanes.ts';
import { isPublic, wants } from './model.ts';

/** Makes a delivery of each event for each enabled webhook that wants it, and a job for each webhook that has one. */
export async function fanOutToWebhooks(tx: Tx, events: readonly PlacedEvent[]): Promise<void> {
  const told = events.filter(
    (event): event is PlacedEvent & { org_id: OrgId } =>
      event.org_id !== null && (isPublic(event.type) || event.type === 'webhook.ping'),
  );
  if (told.length === 0) return;
  const listeners = await listListeners(tx, [...new Set(told.map(({ org_id }) => org_id))]);
  if (listeners.length === 0) return;
  const pings = await pingedBy(tx, told);
  const by_org = Map.groupBy(listeners, ({ org_id }) => org_id);
  const deliveries: NewDelivery[] = [];
  const touched = new Map<WebhookId, Listener>();
  for (const event of told) {
    for (const listener of by_org.get(event.org_id) ?? []) {
      if (!isFor(event, listener, pings)) continue;
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

/** Of each ping, the webhook that it is for. */
async function pingedBy(tx: Tx, events: readonly PlacedEvent[]): Promise<ReadonlyMap<EventId, string>> {
  const pings = await readEvents(
    tx,
    events.filter(({ type }) => type === 'webhook.ping'),
  );
  return new Map(
    pings.map(({ id, data }) => [id, (data as { webhook?: { id?: string } }).webhook?.id ?? '']),
  );
}

function isFor({ id, type }: PlacedEvent, listener: Listener, pings: ReadonlyMap<EventId, string>): boolean {
  return type === 'webhook.ping' ? pings.get(id) === listener.id : wants(listener.events, type);
}
