/**
 * Reads the outbox: numbers the committed events and hands them to the consumers, in the order of their positions, one
 * transaction a batch. One dispatcher works at a time; another one that runs meanwhile does nothing.
 */
import type { OrgId } from '../../shared/ids.ts';
import { notify } from '../db/notify.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { numberEvents, type PlacedEvent } from './store.ts';

/** Takes over a batch, in order, each event exactly once: its writes are committed with the batch. */
export type EventConsumer = (tx: Tx, events: readonly PlacedEvent[]) => Promise<void>;

/** The first batch is small, so that the first events of a backlog are delivered soon. */
const BATCH = { first: 64, most: 512 };

/** Runs until no committed event is without a position. */
export async function dispatchEvents(db: Db, consumers: readonly EventConsumer[]): Promise<void> {
  for (let limit = BATCH.first; ; limit = Math.min(limit * 2, BATCH.most)) {
    const count = await dispatchBatch(db, limit, consumers);
    if (count < limit) return;
  }
}

async function dispatchBatch(db: Db, limit: number, consumers: readonly EventConsumer[]): Promise<number> {
  return transaction(db, async (tx) => {
    const events = await numberEvents(tx, limit);
    if (events === null || events.length === 0) return 0;
    for (const consume of consumers) await consume(tx, events);
    // Wakes the streams.
    for (const org_id of organisationsOf(events)) await notify(tx, 'events', org_id);
    return events.length;
  });
}

function organisationsOf(events: readonly PlacedEvent[]): ReadonlySet<OrgId> {
  return new Set(events.flatMap(({ org_id }) => (org_id === null ? [] : [org_id])));
}
