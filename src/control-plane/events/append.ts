/**
 * The transactional outbox of events. `append` inserts an event in the transaction that makes it true, so the event
 * exists if and only if that transaction commits.
 *
 * `dispatchEvents` gives committed events their positions in one order, and hands them in this order to the consumers
 * (webhooks and notifications). A batch is one transaction.
 */

import { Signal } from '../../shared/concurrency.ts';
import { type EventId, type InstanceId, newId, type OrgId, type UserId } from '../../shared/ids.ts';
import { notify } from '../db/notify.ts';
import { afterCommit, type Db, type Tx, transaction } from '../db/pool.ts';
import type { EventType, PrivateEventType } from './model.ts';
import { insertEvent, nextSequence, numberEvents, type PlacedEvent } from './store.ts';

/**
 * Wakes this process's dispatcher after the commit of an event. This is no NOTIFY: commits that notify take one lock of the
 * whole server in turn. Each process that commits events has a dispatcher, and a timer finds what a process that died
 * left behind.
 */
const committed = new Signal();
const wakeDispatcher = committed.notify;

/** Calls `wake` after each commit of an event in this process. Returns the function that unsubscribes. */
export const onCommitted = committed.subscribe;

interface EventContent {
  readonly data: Record<string, unknown>;
  /** `usr_…`, `sa_…`, `host_…`, `operator` (a command on the server) or `system`. */
  readonly actor: string;
}

export interface NewEvent extends EventContent {
  readonly org_id: OrgId;
  /** Makes the event one of the instance's sequence. */
  readonly instance_id?: InstanceId;
  /** The account that gets the notification. */
  readonly user_id?: UserId;
  readonly type: EventType;
}

/** An event for notifications only: of an account (`user_id`), of an organisation, or of an account in one. */
export interface NewPrivateEvent extends EventContent {
  readonly type: PrivateEventType;
  readonly org_id: OrgId | null;
  readonly user_id: UserId | null;
  readonly instance_id?: InstanceId;
}

export function append(tx: Tx, event: NewEvent): Promise<EventId> {
  return insert(tx, { user_id: null, ...event });
}

export function appendPrivate(tx: Tx, event: NewPrivateEvent): Promise<EventId> {
  return insert(tx, event);
}

async function insert(
  tx: Tx,
  event: Omit<NewPrivateEvent, 'type'> & { readonly type: string },
): Promise<EventId> {
  const { org_id, user_id, instance_id = null, type, data, actor } = event;
  const id = newId('evt');
  const sequence = instance_id && (await nextSequence(tx, instance_id));
  await insertEvent(tx, {
    id,
    org_id,
    user_id,
    instance_id,
    sequence,
    type,
    actor,
    data: JSON.stringify(data),
  });
  afterCommit(tx, wakeDispatcher);
  return id;
}

/** Takes over a batch, in order, each event exactly once: its writes are committed with the batch. */
export type EventConsumer = (tx: Tx, events: readonly PlacedEvent[]) => Promise<void>;

/** The first batch is small, so that the first events of a backlog are delivered soon. */
const BATCH = { first: 64, most: 512 };

/** Runs until no committed event is without a position. One dispatcher works at a time; another one meanwhile does nothing. */
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
