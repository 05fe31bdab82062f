/** Deliveries as the API and the outbox see them: made, listed, asked for again, pruned. */
import { type RawBuilder, sql } from 'kysely';
import { arrayText } from '../db/array-text.ts';
import type { Tx } from '../db/pool.ts';
import {
  type EventId,
  type InstanceId,
  newId,
  type OrgId,
  type WebhookDeliveryId,
  type WebhookId,
} from '../lib/ids.ts';
import { EVENT_OF_FRESH, freshOf } from './fresh-store.ts';
import type { DeliveryState } from './model.ts';

export interface NewDelivery {
  readonly webhook_id: WebhookId;
  readonly event_id: EventId;
  readonly position: number;
  readonly instance_id: InstanceId | null;
}

/** Of one statement: the parameters of so many rows are about half a MiB. */
const CHUNK = 5_000;

/** One that is there already is sent again from the start. */
export async function insertDeliveriesAgain(tx: Tx, deliveries: readonly NewDelivery[]): Promise<void> {
  for (let from = 0; from < deliveries.length; from += CHUNK) {
    const rows = deliveries.slice(from, from + CHUNK);
    const now_ms = Date.now();
    await sql`
      insert into webhook_deliveries (id, webhook_id, event_id, position, instance_id)
      select * from unnest(
        ${arrayText(rows.map(() => newId('whd', now_ms)))}::text[], ${arrayText(rows.map((row) => row.webhook_id))}::text[],
        ${arrayText(rows.map((row) => row.event_id))}::text[], ${arrayText(rows.map((row) => row.position))}::bigint[],
        ${arrayText(rows.map((row) => row.instance_id))}::text[])
      on conflict (webhook_id, position) do update set state = 'pending', tries = 0, next_attempt_at = null`.execute(
      tx,
    );
  }
}

export interface Listener {
  readonly id: WebhookId;
  readonly org_id: OrgId;
  readonly events: string[];
  readonly slow: boolean;
}

/** The enabled webhooks of these organisations. */
export async function listListeners(tx: Tx, org_ids: readonly OrgId[]): Promise<readonly Listener[]> {
  const { rows } = await sql<Listener>`
    select id, org_id, events, slow from webhooks
    where org_id = any(${[...org_ids]}::text[]) and status = 'enabled'
    order by id`.execute(tx);
  return rows;
}

export interface AttemptRow {
  readonly number: number;
  /** As JSON has it. */
  readonly at: string;
  readonly status: number | null;
  readonly latency_ms: number;
  readonly error: string | null;
  readonly response: string;
}

export interface DeliveryRow {
  readonly id: WebhookDeliveryId;
  readonly event_id: EventId;
  readonly event_type: string | null;
  readonly instance_id: InstanceId | null;
  readonly position: number;
  readonly state: DeliveryState;
  readonly attempts: number;
  readonly next_attempt_at: Date | null;
  readonly created_at: Date;
  /** The last ten, oldest first. */
  readonly last_attempts: readonly AttemptRow[];
}

export const SHOWN_ATTEMPTS = 10;

const ROW = sql`
  d.id, d.event_id, d.instance_id, d.position, d.state, d.attempts, d.next_attempt_at, d.created_at,
  d.first_at, d.first_status, d.first_latency_ms, d.first_error, d.first_response`;
/** As it will be in its row. */
const FRESH = sql`
  f.id, e.id as event_id, e.instance_id, f.position, 'pending' as state, 0 as attempts, null as next_attempt_at,
  f.created_at, null as first_at, null as first_status, null as first_latency_ms, null as first_error,
  null as first_response`;

/** @param rows of {@link ROW} or {@link FRESH} */
function shown(rows: RawBuilder<unknown>) {
  return sql<DeliveryRow>`
    select d.id, d.event_id, e.type as event_type, d.instance_id, d.position, d.state, d.attempts, d.next_attempt_at,
      d.created_at,
      coalesce((
        select json_agg(a order by a.number) from (
          select 1 as number, d.first_at as at, d.first_status as status, d.first_latency_ms as latency_ms,
            d.first_error as error, d.first_response as response
          where d.first_at is not null
          union all
          select number, at, status, latency_ms, error, response from webhook_attempts where delivery_id = d.id
          order by number desc limit ${sql.lit(SHOWN_ATTEMPTS)}
        ) as a
      ), '[]'::json) as last_attempts
    from (${rows}) as d left join events e on e.id = d.event_id`;
}

/** Those of the newest events first; `before` is a position. */
export async function listDeliveries(
  tx: Tx,
  webhook_id: WebhookId,
  filter: { readonly status?: DeliveryState },
  before: number | null,
  limit: number,
): Promise<readonly DeliveryRow[]> {
  const { status } = filter;
  const earlier = (column: string) => (before === null ? sql`` : sql`and ${sql.ref(column)} < ${before}`);
  const rows = sql`
    (select ${ROW} from webhook_deliveries d
     where d.webhook_id = ${webhook_id} ${earlier('d.position')}
       ${status === undefined ? sql`` : sql`and d.state = ${sql.lit(status)}`}
     order by d.position desc limit ${limit})`;
  const batches = sql`
    (select * from webhook_batches where webhook_id = ${webhook_id} ${before === null ? sql`` : sql`and positions[1] < ${before}`}
     order by position desc)`;
  const fresh = sql`
    (select ${FRESH}
     from (${freshOf(batches, sql`true ${earlier('f.position')}`)} order by b.position desc, f.position desc limit ${limit}) as f
     join events e on ${EVENT_OF_FRESH})`;
  const all = status === undefined || status === 'pending' ? sql`${rows} union all ${fresh}` : rows;
  const { rows: found } =
    await sql<DeliveryRow>`${shown(all)} order by d.position desc limit ${limit}`.execute(tx);
  return found;
}

/** Undefined when there is none; `event_type` is null when its event is too old to be sent again. */
export async function findDelivery(
  tx: Tx,
  webhook_id: WebhookId,
  id: WebhookDeliveryId,
): Promise<DeliveryRow | undefined> {
  const rows = sql`select ${ROW} from webhook_deliveries d where d.webhook_id = ${webhook_id} and d.id = ${id}`;
  const { rows: found } = await shown(rows).execute(tx);
  return found[0];
}

/** With a schedule of its own from now on, beside the order. False when its event is older than `days`. */
export async function redeliver(tx: Tx, id: WebhookDeliveryId, days: number): Promise<boolean> {
  const { rows } = await sql`
    update webhook_deliveries d set state = 'pending', tries = 0, next_attempt_at = now()
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

/** Deliveries that are still to be made. */
export async function countPendingDeliveries(tx: Tx): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select (select count(*) from webhook_deliveries where state = 'pending')
      + (select count(*) from (${freshOf(sql`webhook_batches`)}) as f) as count`.execute(tx);
  return Number(rows[0]?.count ?? 0);
}
