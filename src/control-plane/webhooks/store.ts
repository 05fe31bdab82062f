/**
 * All SQL of webhooks, in this order: webhooks; deliveries as the API and the fan-out see them; what a sender reads and
 * records; leases; the removal of old rows.
 *
 * - A deleted webhook has no organisation, so the API does not find it. The sweep removes its rows later.
 * - A sender locks no rows of deliveries, because it holds its webhook's lease.
 */
import { type RawBuilder, sql } from 'kysely';
import {
  type EventId,
  type InstanceId,
  newId,
  type OrgId,
  type WebhookDeliveryId,
  type WebhookId,
} from '../../shared/ids.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import type { Outcome, SentEvent } from './attempt.ts';
import type { DeliveryState, DisabledReason, WebhookStatus } from './model.ts';

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
const HEALTHY = { failing_since: null, failing_notified: false } as const;

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
export async function markFailingNotified(tx: Tx, id: WebhookId): Promise<WebhookRow | undefined> {
  return tx
    .updateTable('webhooks')
    .set({ failing_notified: true })
    .where('id', '=', id)
    .where('failing_notified', '=', false)
    .returning(SHOWN)
    .executeTakeFirst();
}

/** Its organisation; null: it is deleted. */
export async function findOwner(tx: Tx, id: WebhookId): Promise<OrgId | null> {
  const row = await tx.selectFrom('webhooks').select('org_id').where('id', '=', id).executeTakeFirst();
  return row?.org_id ?? null;
}

// Deliveries as the API and the outbox see them: inserted, listed, redelivered, replayed, counted.

export interface NewDelivery {
  readonly webhook_id: WebhookId;
  readonly event_id: EventId;
  readonly position: number;
  readonly instance_id: InstanceId | null;
}

/** Rows of one statement. */
const INSERTED_ROWS = 5_000;

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
  for (let from = 0; from < deliveries.length; from += INSERTED_ROWS)
    yield deliveries.slice(from, from + INSERTED_ROWS);
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
export async function listDispatchedSince(
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

// What a sender reads of its webhook and its deliveries. A sender holds the webhook's lease, so it need not lock rows.

export interface Receiver {
  readonly id: WebhookId;
  readonly url: string;
  readonly status: WebhookStatus;
  /** Null: the webhook is deleted. */
  readonly org_id: OrgId | null;
  /** Its URL has answered 2xx. */
  readonly proven: boolean;
  /** Its last recorded outcomes were failures. */
  readonly failing: boolean;
  readonly secret: Buffer;
  /** Null also after its grace period. */
  readonly previous_secret: Buffer | null;
}

export async function findReceiver(tx: Tx, id: WebhookId): Promise<Receiver | undefined> {
  return tx
    .selectFrom('webhooks')
    .select(['id', 'url', 'status', 'org_id', 'secret'])
    .select(sql<boolean>`proven_at is not null`.as('proven'))
    .select(sql<boolean>`failing_since is not null`.as('failing'))
    .select(
      sql<Buffer | null>`case when previous_expires_at > now() then previous_secret end`.as(
        'previous_secret',
      ),
    )
    .where('id', '=', id)
    .executeTakeFirst();
}

/** A delivery that is due, with its event. */
export interface DueDelivery extends SentEvent {
  readonly id: WebhookDeliveryId;
  readonly position: number;
  readonly instance_id: InstanceId | null;
  readonly in_order: boolean;
  readonly attempts: number;
  readonly tries: number;
}

export interface Page {
  /** What is sent in order is read from beyond this position. */
  readonly after: number;
  /** How many of those, and how many retries, at most. */
  readonly in_order: number;
  readonly retries: number;
}

/** What a request sends of an event `e`. */
const SENT = sql`e.org_id, e.type, e.data, e.actor, e.sequence,
      to_char(e.created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as event_at`;

/** Undefined once it has expired. */
export async function findSentEvent(tx: Tx, id: EventId): Promise<SentEvent | undefined> {
  const { rows } =
    await sql<SentEvent>`select e.id as event_id, ${SENT} from events e where e.id = ${id}`.execute(tx);
  return rows[0];
}

/** Due deliveries: those sent in order, by position, then the retries that are due for longest. */
export async function listDue(
  tx: Tx,
  webhook_id: WebhookId,
  { after, in_order, retries }: Page,
): Promise<readonly DueDelivery[]> {
  const { rows } = await sql<DueDelivery>`
    select d.id, d.position, d.instance_id, d.in_order, d.attempts, d.tries, d.event_id, ${SENT}
    from (
      (select * from webhook_deliveries
       where webhook_id = ${webhook_id} and state = 'pending' and in_order and position > ${after}
       order by position limit ${in_order})
      union all
      (select * from webhook_deliveries
       where webhook_id = ${webhook_id} and state = 'pending' and not in_order and next_attempt_at <= now()
       order by next_attempt_at limit ${retries})
    ) as d join events e on e.id = d.event_id
    order by d.in_order desc, d.position`.execute(tx);
  return rows;
}

/**
 * Writes the outcomes of a webhook's deliveries, several in one statement.
 *
 * An outcome decides the delivery's state only if the delivery is still pending at this try; a success always does.
 * Otherwise it was redelivered, replayed or disabled during the attempt, and the attempt is kept alone. Writing an
 * outcome twice changes nothing.
 */
export async function recordOutcomes(tx: Tx, outcomes: readonly Outcome[]): Promise<void> {
  const column = <K extends keyof Outcome>(name: K) => outcomes.map((each) => each[name]);
  const decides = sql`(o.state = 'delivered' or (d.state = 'pending' and d.tries = o.tries - 1))`;
  await sql`
    with o as (
      select * from unnest(
        ${column('id')}::text[], ${column('number')}::int[], ${column('tries')}::int[], ${column('state')}::text[],
        ${column('retry_in_ms')}::bigint[], ${column('at')}::timestamptz[], ${column('status')}::int[],
        ${column('latency_ms')}::int[], ${column('error')}::text[], ${column('response')}::text[],
        ${column('address')}::text[], ${outcomes.map(({ response_headers }) => JSON.stringify(response_headers))}::text[]
      ) as o (id, number, tries, state, retry_in_ms, at, status, latency_ms, error, response, url, response_headers)
    ), recorded as (
      update webhook_deliveries d set
        attempts = greatest(d.attempts, o.number),
        tries = case when ${decides} then o.tries else d.tries end,
        state = case when ${decides} then o.state else d.state end,
        in_order = d.in_order and not ${decides},
        next_attempt_at = case
          when ${decides} then now() + o.retry_in_ms * interval '1 millisecond' else d.next_attempt_at
        end
      from o where d.id = o.id
      returning d.id
    )
    insert into webhook_attempts (delivery_id, number, at, url, status, latency_ms, error, response_headers, response)
    select id, number, at, url, status, latency_ms, error, response_headers::jsonb, response
    from o join recorded using (id)
    on conflict do nothing`.execute(tx);
}

export interface Health {
  /** Nothing but failures for five days. */
  readonly hopeless: boolean;
  /** Nothing but failures for an hour. */
  readonly persists: boolean;
  readonly failing_notified: boolean;
}

/** Notes that the receiver accepted a delivery, or none. Undefined when there is nothing to note. */
export async function noteHealth(
  tx: Tx,
  webhook_id: WebhookId,
  accepted: boolean,
): Promise<Health | undefined> {
  const { rows } = await sql<Health>`
    update webhooks set
      failing_since = case when ${accepted} then null else coalesce(failing_since, now()) end,
      failing_notified = failing_notified and not ${accepted}
    where id = ${webhook_id} and (not ${accepted} or failing_since is not null)
    returning coalesce(failing_since <= now() - interval '5 days', false) as hopeless,
              coalesce(failing_since <= now() - interval '1 hour', false) as persists, failing_notified`.execute(
    tx,
  );
  return rows[0];
}

// Leases: at most one process sends to a webhook. A process that dies leaves a lease that expires, and another process
// takes it over.

/** Whether `owner` holds the lease now, for `lease_s`. */
export async function takeLease(
  tx: Tx,
  webhook_id: WebhookId,
  owner: string,
  lease_s: number,
): Promise<boolean> {
  const until = sql<Date>`now() + make_interval(secs => ${lease_s})`;
  const taken = await tx
    .insertInto('webhook_leases')
    .values({ webhook_id, owner, until })
    .onConflict((conflict) =>
      conflict
        .column('webhook_id')
        .doUpdateSet({ owner, until })
        .where('webhook_leases.until', '<', sql<Date>`now()`),
    )
    .returning('owner')
    .executeTakeFirst();
  return taken !== undefined;
}

/** Renews all leases of a process. */
export async function renewLeases(
  tx: Tx,
  owner: string,
  webhook_ids: readonly WebhookId[],
  lease_s: number,
): Promise<void> {
  await tx
    .updateTable('webhook_leases')
    .set({ until: sql<Date>`now() + make_interval(secs => ${lease_s})` })
    .where('webhook_id', 'in', webhook_ids)
    .where('owner', '=', owner)
    .execute();
}

/** Does nothing if another process has taken the lease over. */
export async function releaseLease(tx: Tx, webhook_id: WebhookId, owner: string): Promise<void> {
  await tx
    .deleteFrom('webhook_leases')
    .where('webhook_id', '=', webhook_id)
    .where('owner', '=', owner)
    .execute();
}

export interface DueWebhook {
  readonly id: WebhookId;
  readonly org_id: OrgId;
  /** Its URL has answered 2xx. */
  readonly proven: boolean;
}

/** Enabled webhooks with a due delivery and without a live lease. */
export async function listDueWebhooks(tx: Tx): Promise<readonly DueWebhook[]> {
  const { rows } = await sql<DueWebhook>`
    select w.id, w.org_id, w.proven_at is not null as proven from webhooks w
    where w.org_id is not null and w.status = 'enabled'
      and not exists (select from webhook_leases l where l.webhook_id = w.id and l.until >= now())
      and (
        exists (
          select from webhook_deliveries d where d.webhook_id = w.id and d.state = 'pending' and d.in_order
        ) or exists (
          select from webhook_deliveries d
          where d.webhook_id = w.id and d.state = 'pending' and not d.in_order and d.next_attempt_at <= now()
        )
      )`.execute(tx);
  return rows;
}

// Removes old attempts and deliveries, and all rows of deleted webhooks. Each statement removes few rows.

const KEPT_DAYS = 14;
/** Events are kept for so long. A delivery without its event can't be sent. */
const EVENT_DAYS = 30;
/** Rows of one statement, which bounds its locks. */
const PRUNED_ROWS = 10_000;

async function inChunks(db: Db, change: RawBuilder<unknown>): Promise<void> {
  for (;;) {
    const { numAffectedRows } = await change.execute(db);
    if ((numAffectedRows ?? 0n) < BigInt(PRUNED_ROWS)) return;
  }
}

/** The smallest id of the time `days` ago: ids sort by time. */
function idOf(kind: 'whd' | 'evt', days: number): string {
  const id = newId(kind, Date.now() - days * 86_400_000);
  return `${id.slice(0, `${kind}_`.length + 10)}${'0'.repeat(16)}`;
}

/** Fails pending deliveries whose event is deleted: after a late redelivery, or long waits that the receiver asked for. */
async function failWithoutEvent(db: Db): Promise<void> {
  // Each of the two has an index.
  for (const in_order of [sql`in_order`, sql`not in_order`]) {
    await inChunks(
      db,
      sql`update webhook_deliveries set state = 'failed', in_order = false, next_attempt_at = null where id in (
        select d.id from webhook_deliveries d
        where d.state = 'pending' and ${in_order} and d.event_id < ${idOf('evt', EVENT_DAYS)}
          and not exists (select from events e where e.id = d.event_id)
        limit ${PRUNED_ROWS})`,
    );
  }
}

/** To be called after old events were removed. */
export async function pruneDeliveries(db: Db): Promise<void> {
  await failWithoutEvent(db);
  await inChunks(
    db,
    sql`delete from webhook_attempts where ctid = any(array(
      select ctid from webhook_attempts where at < now() - make_interval(days => ${KEPT_DAYS}) limit ${PRUNED_ROWS}))`,
  );
  await inChunks(
    db,
    sql`delete from webhook_deliveries where id in (
      select d.id from webhook_deliveries d
      where d.id < ${idOf('whd', KEPT_DAYS)} and (d.state <> 'pending' or d.id < ${idOf('whd', EVENT_DAYS)})
        and not exists (select from webhook_attempts a where a.delivery_id = d.id)
      limit ${PRUNED_ROWS})`,
  );
  const deleted = await db
    .selectFrom('webhooks')
    .select('id')
    .where('org_id', 'is', null)
    .limit(1_000)
    .execute();
  for (const { id } of deleted) {
    await inChunks(
      db,
      sql`with gone as materialized (
        select id from webhook_deliveries where webhook_id = ${id} limit ${PRUNED_ROWS}
      ), attempts as (
        delete from webhook_attempts where delivery_id in (select id from gone)
      )
      delete from webhook_deliveries where id in (select id from gone)`,
    );
    await db.deleteFrom('webhook_leases').where('webhook_id', '=', id).execute();
    await db.deleteFrom('webhooks').where('id', '=', id).execute();
  }
}
