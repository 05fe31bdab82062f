/** Webhooks. A deleted one has no organisation; the sweep removes its rows. */
import { sql } from 'kysely';
import {
  type EventId,
  type InstanceId,
  newId,
  type OrgId,
  type WebhookDeliveryId,
  type WebhookId,
} from '../../shared/ids.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import type { DeliveryState, DisabledReason } from './model.ts';

const SHOWN = [
  'id',
  'name',
  'url',
  'events',
  'status',
  'disabled_reason',
  'disabled_at',
  'previous_expires_at',
  'failing_since',
  'proven_at',
  'version',
  'created_by',
  'created_at',
  'updated_at',
] as const;

export type WebhookRow = Awaited<ReturnType<typeof insertWebhook>>;

export interface NewWebhook {
  readonly id: WebhookId;
  readonly org_id: OrgId;
  readonly name: string;
  readonly url: string;
  readonly events: string[];
  readonly secret: Buffer;
  readonly created_by: string;
}

export async function insertWebhook(tx: Tx, webhook: NewWebhook) {
  return tx.insertInto('webhooks').values(webhook).returning(SHOWN).executeTakeFirstOrThrow();
}

export async function listWebhooks(tx: Tx, org_id: OrgId, before: string | null, limit: number) {
  let query = tx.selectFrom('webhooks').select(SHOWN).where('org_id', '=', org_id);
  if (before !== null) query = query.where('id', '<', before as WebhookId);
  return query.orderBy('id', 'desc').limit(limit).execute();
}

export async function findWebhook(tx: Tx, org_id: OrgId, id: WebhookId): Promise<WebhookRow | undefined> {
  return tx
    .selectFrom('webhooks')
    .select(SHOWN)
    .where('org_id', '=', org_id)
    .where('id', '=', id)
    .executeTakeFirst();
}

/** As {@link findWebhook}, and locks it. */
export async function lockWebhook(tx: Tx, org_id: OrgId, id: WebhookId): Promise<WebhookRow | undefined> {
  return tx
    .selectFrom('webhooks')
    .select(SHOWN)
    .where('org_id', '=', org_id)
    .where('id', '=', id)
    .forNoKeyUpdate()
    .executeTakeFirst();
}

const CHANGED = {
  version: sql<number>`version + 1`,
  updated_at: sql<Date>`now()`,
} as const;
const HEALTHY = { failing_since: null, failing_told: false } as const;

/** A webhook with a changed URL is unproven again. */
const provenAt = (url: string) => ({
  proven_at: sql<Date | null>`case when url = ${url} then proven_at end`,
});

export interface WebhookChange {
  readonly name?: string;
  readonly url?: string;
  readonly events?: string[];
}

export async function updateWebhook(tx: Tx, id: WebhookId, change: WebhookChange): Promise<WebhookRow> {
  return tx
    .updateTable('webhooks')
    .set({
      ...change,
      ...(change.url === undefined ? {} : { ...HEALTHY, ...provenAt(change.url) }),
      ...CHANGED,
    })
    .where('id', '=', id)
    .returning(SHOWN)
    .executeTakeFirstOrThrow();
}

/** Fails deliveries of a fan-out that ran beside the disabling. */
export async function enableWebhook(tx: Tx, id: WebhookId): Promise<WebhookRow> {
  await failPending(tx, id);
  return tx
    .updateTable('webhooks')
    .set({ status: 'enabled', disabled_reason: null, disabled_at: null, ...HEALTHY, ...CHANGED })
    .where('id', '=', id)
    .returning(SHOWN)
    .executeTakeFirstOrThrow();
}

/** Fails its pending deliveries. Undefined: it is disabled already, or its URL is not one of `addresses`. */
export async function disableWebhook(
  tx: Tx,
  id: WebhookId,
  reason: DisabledReason,
  addresses?: readonly string[],
): Promise<(WebhookRow & { org_id: OrgId | null }) | undefined> {
  let update = tx
    .updateTable('webhooks')
    .set({ status: 'disabled', disabled_reason: reason, disabled_at: sql<Date>`now()`, ...CHANGED })
    .where('id', '=', id)
    .where('status', '=', 'enabled');
  if (addresses) update = update.where('url', 'in', addresses);
  const row = await update.returning([...SHOWN, 'org_id']).executeTakeFirst();
  if (row) await failPending(tx, id);
  return row;
}

/** Fails deliveries of a fan-out that ran beside the disabling, if the webhook is still disabled. */
export async function failLeftBehind(db: Db, id: WebhookId): Promise<void> {
  await transaction(db, async (tx) => {
    const disabled = await tx
      .selectFrom('webhooks')
      .select('id')
      .where('id', '=', id)
      .where('status', '=', 'disabled')
      .forNoKeyUpdate()
      .executeTakeFirst();
    if (disabled) await failPending(tx, id);
  });
}

async function failPending(tx: Tx, id: WebhookId): Promise<void> {
  await tx
    .updateTable('webhook_deliveries')
    .set({ state: 'failed', in_order: false, next_attempt_at: null })
    .where('webhook_id', '=', id)
    .where('state', '=', 'pending')
    .execute();
}

/** The present secret signs beside the new one for `grace_seconds`; an earlier one no longer signs. */
export async function replaceWebhookSecret(
  tx: Tx,
  id: WebhookId,
  secret: Buffer,
  grace_seconds: number,
): Promise<WebhookRow> {
  const overlap = grace_seconds > 0;
  return tx
    .updateTable('webhooks')
    .set({
      secret,
      previous_secret: overlap ? sql<Buffer>`secret` : null,
      previous_expires_at: overlap
        ? sql<Date>`date_trunc('milliseconds', now()) + make_interval(secs => ${grace_seconds})`
        : null,
      ...CHANGED,
    })
    .where('id', '=', id)
    .returning(SHOWN)
    .executeTakeFirstOrThrow();
}

/** Hides the webhook from all reads. The sweep removes its rows. */
export async function markWebhookDeleted(tx: Tx, id: WebhookId): Promise<void> {
  await tx.updateTable('webhooks').set({ org_id: null }).where('id', '=', id).execute();
}

/** These addresses have answered 2xx: the webhook is proven if its URL is one of them. */
export async function markProven(tx: Tx, id: WebhookId, addresses: readonly string[]): Promise<void> {
  await tx
    .updateTable('webhooks')
    .set({ proven_at: sql<Date>`date_trunc('milliseconds', now())` })
    .where('id', '=', id)
    .where('proven_at', 'is', null)
    .where('url', 'in', [...addresses])
    .execute();
}

/** Undefined: the organisation was told already. */
export async function markFailingTold(tx: Tx, id: WebhookId): Promise<WebhookRow | undefined> {
  return tx
    .updateTable('webhooks')
    .set({ failing_told: true })
    .where('id', '=', id)
    .where('failing_told', '=', false)
    .returning(SHOWN)
    .executeTakeFirst();
}

/** Its organisation; null: it is deleted. */
export async function findOwner(tx: Tx, id: WebhookId): Promise<OrgId | null> {
  const row = await tx.selectFrom('webhooks').select('org_id').where('id', '=', id).executeTakeFirst();
  return row?.org_id ?? null;
}

/** Deliveries as the API and the outbox see them: inserted, listed, redelivered, replayed, counted. */

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
