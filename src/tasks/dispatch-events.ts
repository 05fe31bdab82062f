/**
 * Reads the outbox: hands the events that are settled to the consumers, in the order of their positions, and moves the
 * head on, all in one transaction, one batch after another. Only one process does it at a time; who finds another at it
 * has nothing to do.
 */
import { notify } from '../db/notify.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { type Gap, type PlacedEvent, type Settled, takeSettled } from '../events/store.ts';
import { wakeDispatcher } from '../events/wake.ts';
import { pause } from '../lib/backoff.ts';
import type { OrgId } from '../lib/ids.ts';

/** Takes over a batch, in order, each event exactly once: what it writes is committed with the batch. */
export type EventConsumer = (tx: Tx, events: readonly PlacedEvent[]) => Promise<void>;

/** The first of many that wait is small, so that it is soon with those who send. */
const BATCH = { first: 64, most: 512 };
/** Before another look at a position that may still come: most do in a moment. */
const HELD_UP_MS = { first: 2, most: 50 };

/** What is known of a gap holds whoever looks next, and is kept from run to run. */
const gaps = new WeakMap<Db, Gap>();

/**
 * Until no event waits. Where one does for what others have not committed yet, the dispatcher of this process is woken
 * for another run: nobody else would be by a rollback.
 */
export async function dispatchEvents(db: Db, consumers: readonly EventConsumer[]): Promise<void> {
  let limit = BATCH.first;
  for (let wait_ms = HELD_UP_MS.first; ; ) {
    const batch = await dispatchBatch(db, limit, consumers);
    if (batch === null) return;
    if (batch.gap) gaps.set(db, batch.gap);
    else gaps.delete(db);
    if (!batch.is_held_up && !batch.is_full) return;
    if (!batch.is_held_up || (batch.is_full && batch.events.length > 0)) {
      limit = Math.min(limit * 2, BATCH.most);
      continue;
    }
    // Under load there is always a last one under way: what comes meanwhile goes with it.
    if (batch.events.length > 0 || wait_ms > HELD_UP_MS.most) return wakeDispatcher();
    await pause(wait_ms);
    wait_ms = wait_ms < HELD_UP_MS.most ? Math.min(wait_ms * 2, HELD_UP_MS.most) : Number.POSITIVE_INFINITY;
  }
}

async function dispatchBatch(
  db: Db,
  limit: number,
  consumers: readonly EventConsumer[],
): Promise<Settled | null> {
  return transaction(db, async (tx) => {
    const settled = await takeSettled(tx, limit, gaps.get(db));
    if (settled === null || settled.events.length === 0) return settled;
    for (const consume of consumers) await consume(tx, settled.events);
    // Streams wait for these.
    for (const org_id of organisationsOf(settled.events)) await notify(tx, 'events', org_id);
    return settled;
  });
}

function organisationsOf(events: readonly PlacedEvent[]): ReadonlySet<OrgId> {
  return new Set(events.flatMap(({ org_id }) => (org_id === null ? [] : [org_id])));
}
