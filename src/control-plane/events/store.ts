/**
 * SQL of `events` and `event_head`: inserts events, gives each committed event its position in the one order of all,
 * reads events as pages and for streams, and deletes those that are older than 30 days.
 */
import { type Insertable, type SqlBool, sql } from 'kysely';
import type { EventId, InstanceId, OrgId, UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Database } from '../db/tables.ts';
import type { EventType } from './model.ts';

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

// Queries of the event API: lists go backwards, streams forwards. Both see only events that have a position.

const SHOWN = [
  'position',
  'id',
  'org_id',
  'user_id',
  'instance_id',
  'sequence',
  'type',
  'data',
  'actor',
  'created_at',
] as const;

export interface EventFilter {
  readonly org_id: OrgId;
  readonly types: readonly EventType[];
  /** The id of an instance, HTTP port, API key, SSH key, member or webhook. */
  readonly resource?: string | undefined;
  readonly since?: Date | undefined;
  /** Exclusive. */
  readonly until?: Date | undefined;
  readonly actor?: string | undefined;
}

/** By the prefix of a resource's id: its field in `data`, which is also how its event types begin. Instances have a column. */
const RESOURCE_FIELDS: Readonly<Record<string, string>> = {
  ak: 'api_key',
  key: 'ssh_key',
  port: 'port',
  usr: 'member',
  wh: 'webhook',
};

export function isResource(id: string): boolean {
  const prefix = id.split('_')[0] ?? '';
  return prefix === 'inst' || Object.hasOwn(RESOURCE_FIELDS, prefix);
}

/** False if no event of this type concerns `resource`; the query then leaves the type out. */
export function mayConcern(type: EventType, resource: string): boolean {
  const field = RESOURCE_FIELDS[resource.split('_')[0] ?? ''];
  return field === undefined || type.startsWith(`${field}.`);
}

type Query = ReturnType<typeof filtered>;

/**
 * The events of `filter`, by `read`. The forks of an instance concern it too: they are a second query, so that each has an index
 * in the order of positions.
 */
async function inOrder(
  tx: Tx,
  filter: EventFilter,
  limit: number,
  by: (one: NumberedEvent, other: NumberedEvent) => number,
  read: (query: Query) => Query,
): Promise<NumberedEvent[]> {
  if (filter.types.length === 0) return [];
  const run = async (query: Query) => (await read(query).limit(limit).execute()) as NumberedEvent[];
  const found = await run(filtered(tx, filter));
  const { resource, ...others } = filter;
  if (!resource?.startsWith('inst_') || !filter.types.includes('instance.forked')) return found;
  const forks = await run(
    filtered(tx, { ...others, types: ['instance.forked'] })
      .where('type', '=', 'instance.forked')
      .where(sql<SqlBool>`data -> 'forked_from' ->> 'instance_id' = ${resource}`),
  );
  return forks.length === 0 ? found : [...found, ...forks].sort(by).slice(0, limit);
}

function filtered(tx: Tx, { org_id, types, resource, since, until, actor }: EventFilter) {
  let query = tx
    .selectFrom('events')
    .select(SHOWN)
    .where('org_id', '=', org_id)
    .where('position', 'is not', null)
    .where('type', 'in', [...types]);
  if (resource !== undefined) query = query.where(isOf(resource));
  if (since !== undefined) query = query.where('created_at', '>=', since);
  if (until !== undefined) query = query.where('created_at', '<', until);
  if (actor !== undefined) query = query.where('actor', '=', actor);
  return query;
}

function isOf(resource: string) {
  const prefix = resource.split('_')[0] ?? '';
  if (prefix === 'inst') return sql<SqlBool>`instance_id = ${resource}`;
  return sql<SqlBool>`data -> ${RESOURCE_FIELDS[prefix] ?? ''} ->> 'id' = ${resource}`;
}

/** Newest first. @param before a position */
export function listEvents(tx: Tx, filter: EventFilter, before: number | null, limit: number) {
  return inOrder(
    tx,
    filter,
    limit,
    (one, other) => other.position - one.position,
    (query) => (before === null ? query : query.where('position', '<', before)).orderBy('position', 'desc'),
  );
}

/** Oldest first. */
export function listEventsSince(
  tx: Tx,
  filter: EventFilter,
  position: number,
  limit: number,
): Promise<NumberedEvent[]> {
  return inOrder(
    tx,
    filter,
    limit,
    (one, other) => one.position - other.position,
    (query) => query.where('position', '>', position).orderBy('position'),
  );
}

/** The highest position given so far. */
export async function headPosition(tx: Tx): Promise<number> {
  const head = await tx.selectFrom('event_head').select('position').executeTakeFirstOrThrow();
  return head.position;
}

/** Undefined if the event was deleted, or has no position yet. */
export async function positionOf(tx: Tx, id: EventId): Promise<number | undefined> {
  const event = await tx.selectFrom('events').select('position').where('id', '=', id).executeTakeFirst();
  return event?.position ?? undefined;
}
