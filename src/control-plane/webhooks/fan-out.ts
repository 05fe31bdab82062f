/**
 * Inserts a delivery of each event for each webhook that wants the event, and wakes the senders.
 *
 * A wake-up is only a hint, because the rows of `webhook_deliveries` are the truth. Senders are woken by:
 * - a commit of this process that made deliveries due (`wakeSenders`)
 * - a notification that a webhook, or the order of its deliveries, has changed (`notifyChanged`)
 * - each process's look at the database every two seconds, which finds retries, and what other processes made due
 */
import { EventEmitter } from 'node:events';
import type { EventId, OrgId, WebhookId } from '../../shared/ids.ts';
import { notify } from '../db/notify.ts';
import { afterCommit, type Tx } from '../db/pool.ts';
import { type PlacedEvent, readEvents } from '../events/store.ts';
import { isPublic, wants } from './model.ts';
import { insertDeliveries, type Listener, listListeners } from './store.ts';

const due = new EventEmitter<{ due: [readonly WebhookId[]] }>().setMaxListeners(0);

/** After the commit of `tx`, the senders of this process look for new deliveries of these webhooks. */
export function wakeSenders(tx: Tx, ids: readonly WebhookId[]): void {
  if (ids.length > 0) afterCommit(tx, () => due.emit('due', ids));
}

/** Calls `wake` for each {@link wakeSenders} of this process. Returns the function that unsubscribes. */
export function onDue(wake: (ids: readonly WebhookId[]) => void): () => void {
  due.on('due', wake);
  return () => due.off('due', wake);
}

/** After the commit of `tx`, the webhook's sender, in whichever process, reads its row and its deliveries anew. */
export async function notifyChanged(tx: Tx, id: WebhookId): Promise<void> {
  await notify(tx, 'webhook', id);
}

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
