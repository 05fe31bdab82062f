/** Queries of the event API: lists go backwards, streams forwards. Both see only events that have a position. */
import { type SqlBool, sql } from 'kysely';
import type { EventId, OrgId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
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
