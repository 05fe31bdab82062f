/** What readers of the one order ask: pages backwards, streams forwards. Only events that the head has come to. */
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
}

/** Where `data` holds the resource of an id with this prefix, and what its types begin with; instances have a column. */
const RESOURCE_FIELDS: Readonly<Record<string, string>> = {
  ak: 'api_key',
  key: 'ssh_key',
  usr: 'member',
  wh: 'webhook',
};

export function isResource(id: string): boolean {
  const prefix = id.split('_')[0] ?? '';
  return prefix === 'inst' || Object.hasOwn(RESOURCE_FIELDS, prefix);
}

/** False of types that no event of `resource` has: those need not be looked through for it. */
export function mayConcern(type: EventType, resource: string): boolean {
  const field = RESOURCE_FIELDS[resource.split('_')[0] ?? ''];
  return field === undefined || type.startsWith(`${field}.`);
}

/** Events beyond it are not handed over yet, and others may still come before them. */
export const upToHead = sql<number>`(select position from event_head)`;

function filtered(tx: Tx, { org_id, types, resource }: EventFilter) {
  const query = tx
    .selectFrom('events')
    .select(SHOWN)
    .where('org_id', '=', org_id)
    .where('position', '<=', upToHead)
    .where('type', 'in', [...types]);
  return resource === undefined ? query : query.where(isOf(resource));
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

/** Of the newest event of all that are shown. */
export async function headPosition(tx: Tx): Promise<number> {
  const head = await tx.selectFrom('event_head').select('position').executeTakeFirstOrThrow();
  return head.position;
}

/** Undefined once the event is gone, and until the head has come to it. */
export async function positionOf(tx: Tx, id: EventId): Promise<number | undefined> {
  const query = tx.selectFrom('events').select('position').where('id', '=', id);
  return (await query.where('position', '<=', upToHead).executeTakeFirst())?.position;
}
