/** Deliveries as the API and the outbox see them: inserted, listed, redelivered, replayed, counted. */
import { sql } from 'kysely';
import {
  type EventId,
  type InstanceId,
  newId,
  type OrgId,
  type WebhookDeliveryId,
  type WebhookId,
} from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { DeliveryState } from './model.ts';

export interface NewDelivery {
  readonly webhook_id: WebhookId;
  readonly event_id: EventId;
  readonly position: number;
  readonly instance_id: InstanceId | null;
}

/** Rows of one statement. */
const CHUNK = 5_000;

/** Deliveries of events that have none yet, in the order of positions. */
export async function insertDeliveries(tx: Tx, deliveries: readonly NewDelivery[]): Promise<void> {
  for (const chunk of chunksOf(deliveries)) await insertInto(chunk).execute(tx);
}

/** Makes a delivery for each, or makes the present one pending again, at the start of its backoff. */
export async function replayDeliveries(tx: Tx, deliveries: readonly NewDelivery[]): Promise<void> {
  for (const chunk of chunksOf(deliveries)) {
    await sql`${insertInto(chunk)}
      on conflict (webhook_id, position) do update set
        state = 'pending', in_order = true, tries = 0, next_attempt_at = now()`.execute(tx);
  }
}

function insertInto(rows: readonly NewDelivery[]) {
  const column = <K extends keyof NewDelivery>(name: K) => rows.map((row) => row[name]);
  const now_ms = Date.now();
  return sql`
    insert into webhook_deliveries (id, webhook_id, event_id, position, instance_id)
    select * from unnest(
      ${rows.map(() => newId('whd', now_ms))}::text[], ${column('webhook_id')}::text[], ${column('event_id')}::text[],
      ${column('position')}::bigint[], ${column('instance_id')}::text[])`;
}

function* chunksOf(deliveries: readonly NewDelivery[]): Generator<readonly NewDelivery[]> {
  for (let from = 0; from < deliveries.length; from += CHUNK) yield deliveries.slice(from, from + CHUNK);
}

export interface Listener {
  readonly id: WebhookId;
  readonly org_id: OrgId;
  readonly events: string[];
}

/** The enabled webhooks of these organisations. */
export async function listListeners(tx: Tx, org_ids: readonly OrgId[]): Promise<readonly Listener[]> {
  const { rows } = await sql<Listener>`
    select id, org_id, events from webhooks
    where org_id = any(${[...org_ids]}::text[]) and status = 'enabled'
    order by id`.execute(tx);
  return rows;
}

export interface AttemptRow {
  readonly number: number;
  /** As PostgreSQL writes it into JSON. */
  readonly at: string;
  readonly url: string;
  readonly status: number | null;
  readonly latency_ms: number;
  readonly error: string | null;
  readonly response_headers: Record<string, string>;
  readonly response: string;
}

export interface DeliveryRow {
  readonly id: WebhookDeliveryId;
  readonly event_id: EventId;
  /** Null once the event has expired, as is its data. */
  readonly event_type: string | null;
  readonly event_data: unknown;
  readonly instance_id: InstanceId | null;
  readonly position: number;
  readonly state: DeliveryState;
  readonly attempts: number;
  readonly next_attempt_at: Date | null;
  readonly created_at: Date;
  /** The last ten, oldest first. */
  readonly last_attempts: readonly AttemptRow[];
}

const SHOWN_ATTEMPTS = 10;

function selectDeliveries(tx: Tx, webhook_id: WebhookId) {
  const last_attempts = sql<AttemptRow[]>`
    coalesce((
      select json_agg(a order by a.number) from (
        select number, at, url, status, latency_ms, error, response_headers, response from webhook_attempts
        where delivery_id = d.id order by number desc limit ${sql.lit(SHOWN_ATTEMPTS)}
      ) as a
    ), '[]'::json)`;
  return tx
    .selectFrom('webhook_deliveries as d')
    .leftJoin('events as e', 'e.id', 'd.event_id')
    .select(['d.id', 'd.event_id', 'd.instance_id', 'd.position', 'd.state', 'd.attempts'])
    .select(['d.next_attempt_at', 'd.created_at', 'e.type as event_type', 'e.data as event_data'])
    .select(last_attempts.as('last_attempts'))
    .where('d.webhook_id', '=', webhook_id);
}

/** The newest events first; `before` is a position. */
export async function listDeliveries(
  tx: Tx,
  webhook_id: WebhookId,
  filter: { readonly status?: DeliveryState },
  before: number | null,
  limit: number,
): Promise<readonly DeliveryRow[]> {
  let query = selectDeliveries(tx, webhook_id);
  if (before !== null) query = query.where('d.position', '<', before);
  // A literal: the index of failed deliveries is partial.
  if (filter.status !== undefined) query = query.where('d.state', '=', sql.lit(filter.status));
  return query.orderBy('d.position', 'desc').limit(limit).execute();
}

export async function findDelivery(
  tx: Tx,
  webhook_id: WebhookId,
  id: WebhookDeliveryId,
): Promise<DeliveryRow | undefined> {
  return selectDeliveries(tx, webhook_id).where('d.id', '=', id).executeTakeFirst();
}

/** Makes it pending at the start of its backoff, as a retry. False when its event is older than `days`. */
export async function redeliver(tx: Tx, id: WebhookDeliveryId, days: number): Promise<boolean> {
  const { rows } = await sql`
    update webhook_deliveries d set state = 'pending', in_order = false, tries = 0, next_attempt_at = now()
    from events e
    where d.id = ${id} and e.id = d.event_id and e.created_at > now() - make_interval(days => ${days})
    returning d.id`.execute(tx);
  return rows.length > 0;
}

/** Dispatched events of these types since then, in their order, up to `limit`. */
export async function listEventsSince(
  tx: Tx,
  org_id: OrgId,
  types: readonly string[],
  since: Date,
  limit: number,
) {
  return tx
    .selectFrom('events')
    .select(['id as event_id', 'position', 'instance_id'])
    .where('org_id', '=', org_id)
    .where('position', 'is not', null)
    .$narrowType<{ position: number }>()
    .where('created_at', '>=', since)
    .where('type', 'in', types)
    .orderBy('position')
    .limit(limit)
    .execute();
}

/** Over all webhooks. */
export async function countPendingDeliveries(tx: Tx): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select (select count(*) from webhook_deliveries where state = 'pending' and in_order)
      + (select count(*) from webhook_deliveries where state = 'pending' and not in_order) as count`.execute(
    tx,
  );
  return Number(rows[0]?.count ?? 0);
}
