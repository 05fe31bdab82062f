import type { Tx } from '../db/pool.ts';
import { type PlacedEvent, readEvents } from '../events/store.ts';
import { addJobs } from '../jobs/store.ts';
import type { EventId, OrgId } from '../lib/ids.ts';
import { type Listener, listListeners } from './delivery-store.ts';
import { insertBatches } from './fresh-store.ts';
import { sendJob } from './lanes.ts';
import { isPublic, wants } from './model.ts';

/** Hands the events to each enabled webhook that wants some of them: a batch of deliveries, and a job that sends them. */
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
  const batches = new Map<Listener, number[]>();
  for (const event of told) {
    for (const listener of by_org.get(event.org_id) ?? []) {
      if (!isFor(event, listener, pings)) continue;
      const positions = batches.get(listener);
      if (positions) positions.push(event.position);
      else batches.set(listener, [event.position]);
    }
  }
  await insertBatches(
    tx,
    [...batches].map(([{ id }, positions]) => ({ webhook_id: id, positions })),
  );
  await addJobs(
    tx,
    [...batches.keys()].map(({ id, slow }) => sendJob(id, slow)),
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
