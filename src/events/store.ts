import { CompiledQuery, sql } from 'kysely';
import { atCommit, type Tx } from '../db/pool.ts';
import type { EventId, InstanceId, OrgId, UserId } from '../lib/ids.ts';

/** What the outbox hands over of an event: most consumers care for few types, and `data` is the bulk of it. */
export interface PlacedEvent {
  readonly position: number;
  readonly id: EventId;
  readonly org_id: OrgId | null;
  readonly instance_id: InstanceId | null;
  readonly type: string;
}

/** An event that has its place in the one order of all events. */
export interface NumberedEvent extends PlacedEvent {
  /** Of an account event: whose. */
  readonly user_id: UserId | null;
  readonly sequence: number | null;
  readonly data: unknown;
  readonly actor: string;
  readonly created_at: Date;
}

/**
 * Gives up to `limit` waiting events their positions and returns them in that order. The head's row stays locked until
 * the transaction ends; where another one holds it, the answer is null.
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
      select array(select serial from events where position is null order by serial limit ${limit}) as serials
    ), numbered as (
      -- By an array, not a join: the planner knows of few that wait, and would go through all of them for each. Its place
      -- in the array, which is sorted, is how many of it are no greater.
      update events set position = ${head.position}::bigint + width_bucket(serial, (select serials from waiting))
      -- Said again: the index is of those that wait, and there is none of all.
      where serial = any((select serials from waiting)::bigint[]) and position is null
      returning position, id, org_id, instance_id, type
    )
    select * from numbered order by position`.execute(tx);
  const last = rows.at(-1);
  if (last) {
    await atCommit(tx, CompiledQuery.raw('update event_head set position = $1', [last.position]));
  }
  return rows;
}

/** The whole of them, in their order. */
export async function readEvents(tx: Tx, events: readonly PlacedEvent[]): Promise<readonly NumberedEvent[]> {
  if (events.length === 0) return [];
  const { rows } = await sql<NumberedEvent>`
    select position, id, org_id, user_id, instance_id, sequence, type, data, actor, created_at from events
    where id = any(${events.map(({ id }) => id)}::text[])
    order by position`.execute(tx);
  return rows;
}

/** Removes events older than 30 days. */
export async function deleteOldEvents(tx: Tx): Promise<void> {
  await tx
    .deleteFrom('events')
    .where('created_at', '<', sql<Date>`now() - interval '30 days'`)
    .where('position', 'is not', null)
    .execute();
}
