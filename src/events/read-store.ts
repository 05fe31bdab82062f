/** Queries of the event API: lists go backwards, streams forwards. Both see only events that have a position. */
import { type SqlBool, sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import type { EventId, OrgId } from '../lib/ids.ts';
import type { EventType } from './model.ts';
import type { NumberedEvent } from './store.ts';

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
  /** The id of an instance, API key, SSH key, member or webhook. */
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
export async function listEvents(tx: Tx, filter: EventFilter, before: number | null, limit: number) {
  if (filter.types.length === 0) return [];
  const query = before === null ? filtered(tx, filter) : filtered(tx, filter).where('position', '<', before);
  return (await query.orderBy('position', 'desc').limit(limit).execute()) as NumberedEvent[];
}

/** Oldest first. */
export async function listEventsSince(
  tx: Tx,
  filter: EventFilter,
  position: number,
  limit: number,
): Promise<NumberedEvent[]> {
  if (filter.types.length === 0) return [];
  const query = filtered(tx, filter).where('position', '>', position);
  return (await query.orderBy('position').limit(limit).execute()) as NumberedEvent[];
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
