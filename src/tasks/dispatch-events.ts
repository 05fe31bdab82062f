/**
 * Reads the outbox: gives events their positions and hands them to the consumers, all in one transaction, one batch
 * after another. Only one process does it at a time; who finds another at it has nothing to do.
 */
import { notify } from '../db/notify.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { numberEvents, type PlacedEvent } from '../events/store.ts';
import type { OrgId } from '../lib/ids.ts';

/** Takes over a batch, in order, each event exactly once: what it writes is committed with the batch. */
export type EventConsumer = (tx: Tx, events: readonly PlacedEvent[]) => Promise<void>;

/** The first of many that wait is small, so that it is soon with those who send. */
const BATCH = { first: 64, most: 512 };

/** Until no event waits. */
export async function dispatchEvents(db: Db, consumers: readonly EventConsumer[]): Promise<void> {
  for (let limit = BATCH.first; ; limit = Math.min(limit * 2, BATCH.most)) {
    const events = await transaction(db, async (tx) => {
      const numbered = await numberEvents(tx, limit);
      if (numbered === null || numbered.length === 0) return [];
      for (const consume of consumers) await consume(tx, numbered);
      // Streams wait for these.
      for (const org_id of organisationsOf(numbered)) await notify(tx, 'events', org_id);
      return numbered;
    });
    if (events.length < limit) return;
  }
}

function organisationsOf(events: readonly PlacedEvent[]): ReadonlySet<OrgId> {
  return new Set(events.flatMap(({ org_id }) => (org_id === null ? [] : [org_id])));
}
