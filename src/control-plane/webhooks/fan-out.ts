import type { EventId, OrgId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { type PlacedEvent, readEvents } from '../events/store.ts';
import { insertDeliveries, type Listener, listListeners } from './delivery-store.ts';
import { isPublic, wants } from './model.ts';
import { wakeSenders } from './wake.ts';

/** A consumer of the outbox: inserts a delivery of each event for each enabled webhook that wants it. */
export async function fanOutToWebhooks(tx: Tx, events: readonly PlacedEvent[]): Promise<void> {
  const sendable = events.filter(
    (event): event is PlacedEvent & { org_id: OrgId } =>
      event.org_id !== null && (isPublic(event.type) || event.type === 'webhook.ping'),
  );
  if (sendable.length === 0) return;
  const listeners = await listListeners(tx, [...new Set(sendable.map(({ org_id }) => org_id))]);
  if (listeners.length === 0) return;
  const pinged = await pingedBy(tx, sendable);
  const by_org = Map.groupBy(listeners, ({ org_id }) => org_id);
  const deliveries = sendable.flatMap((event) =>
    (by_org.get(event.org_id) ?? [])
      .filter((listener) => isFor(event, listener, pinged))
      .map(({ id }) => ({
        webhook_id: id,
        event_id: event.id,
        position: event.position,
        instance_id: event.instance_id,
      })),
  );
  await insertDeliveries(tx, deliveries);
  wakeSenders(tx, [...new Set(deliveries.map(({ webhook_id }) => webhook_id))]);
}

/** The webhook that each ping is for. */
async function pingedBy(tx: Tx, events: readonly PlacedEvent[]): Promise<ReadonlyMap<EventId, string>> {
  const pings = await readEvents(
    tx,
    events.filter(({ type }) => type === 'webhook.ping'),
  );
  return new Map(
    pings.map(({ id, data }) => [id, (data as { webhook?: { id?: string } }).webhook?.id ?? '']),
  );
}

function isFor({ id, type }: PlacedEvent, listener: Listener, pinged: ReadonlyMap<EventId, string>): boolean {
  return type === 'webhook.ping' ? pinged.get(id) === listener.id : wants(listener.events, type);
}
