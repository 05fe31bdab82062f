import { type Insertable, sql } from 'kysely';
import type { EventId, InstanceId, OrgId, UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Database } from '../db/tables.ts';

/** The part of an event that every consumer gets: most need few types, and `data` is the bulk of an event. */
export interface PlacedEvent {
  readonly position: number;
  readonly id: EventId;
  readonly org_id: OrgId | null;
  readonly instance_id: InstanceId | null;
  readonly type: string;
}

/** A whole event, with its position in the one order of all events. */
export interface NumberedEvent extends PlacedEvent {
  /** The account that the event concerns. */
  readonly user_id: UserId | null;
  readonly sequence: number | null;
  readonly data: unknown;
  readonly actor: string;
  readonly created_at: Date;
}

/** Locks the instance's row until the transaction ends, so the order of the inserts is that of the sequence. */
export async function nextSequence(tx: Tx, instance_id: InstanceId): Promise<number> {
  const { event_sequence } = await tx
    .updateTable('instances')
    .set((eb) => ({ event_sequence: eb('event_sequence', '+', 1) }))
    .where('id', '=', instance_id)
    .returning('event_sequence')
    .executeTakeFirstOrThrow();
  return event_sequence;
}

export async function insertEvent(tx: Tx, event: Insertable<Database['events']>): Promise<void> {
  await tx.insertInto('events').values(event).execute();
}

/**
 * Gives up to `limit` committed events their positions, in the order of their inserts, and returns them. `event_head`
 * stays locked until the transaction ends. Null: another transaction holds it.
 */
export async function numberEvents(tx: Tx, limit: number): Promise<readonly PlacedEvent[] | null> {
  const head = await tx
    .selectFrom('event_head')
    .select('position')
    .forUpdate()
    .skipLocked()
    .executeTakeFirst();
  if (!head) return null;
  const { rows } = await sql<PlacedEvent>`
    with waiting as materialized (
      select id, row_number() over (order by serial) as place
      from events where position is null order by serial limit ${limit}
    ), numbered as (
      update events e set position = ${head.position}::bigint + w.place
      from waiting w where e.id = w.id
      returning e.position, e.id, e.org_id, e.instance_id, e.type
    )
    select * from numbered order by position`.execute(tx);
  const last = rows.at(-1);
  if (last) await tx.updateTable('event_head').set({ position: last.position }).execute();
  return rows;
}

/** Within the last hour. */
export async function wasAppendedLately(
  tx: Tx,
  instance_id: InstanceId,
  type: string,
  actor: string,
): Promise<boolean> {
  const row = await tx
    .selectFrom('events')
    .select('id')
    .where('instance_id', '=', instance_id)
    .where('type', '=', type)
    .where('actor', '=', actor)
    .where('created_at', '>', sql<Date>`now() - interval '1 hour'`)
    .limit(1)
    .executeTakeFirst();
  return row !== undefined;
}

/** The events as a whole, in the order of their positions. */
export async function readEvents(tx: Tx, events: readonly PlacedEvent[]): Promise<readonly NumberedEvent[]> {
  if (events.length === 0) return [];
  const { rows } = await sql<NumberedEvent>`
    select position, id, org_id, user_id, instance_id, sequence, type, data, actor, created_at from events
    where id = any(${events.map(({ id }) => id)}::text[])
    order by position`.execute(tx);
  return rows;
}

/** Deletes events older than 30 days that the consumers have had. */
export async function deleteOldEvents(tx: Tx): Promise<void> {
  await tx
    .deleteFrom('events')
    .where('created_at', '<', sql<Date>`now() - interval '30 days'`)
    .where('position', 'is not', null)
    .execute();
}
