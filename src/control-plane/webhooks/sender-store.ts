/** What a sender reads of its webhook and its deliveries. It holds the webhook's lease, so it need not lock rows. */
import { type RawBuilder, sql } from 'kysely';
import {
  type EventId,
  type InstanceId,
  newId,
  type OrgId,
  type WebhookDeliveryId,
  type WebhookId,
} from '../../shared/ids.ts';
import { notify } from '../db/notify.ts';
import type { Db, Tx } from '../db/pool.ts';
import type { SentEvent } from './message.ts';
import type { WebhookStatus } from './model.ts';
import type { Outcome } from './record-outcomes.ts';

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

/** Writes the outcomes of a webhook's deliveries, several in one statement, and its health. */

/**
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
  readonly failing_told: boolean;
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
      failing_told = failing_told and not ${accepted}
    where id = ${webhook_id} and (not ${accepted} or failing_since is not null)
    returning coalesce(failing_since <= now() - interval '5 days', false) as hopeless,
              coalesce(failing_since <= now() - interval '1 hour', false) as persists, failing_told`.execute(
    tx,
  );
  return rows[0];
}

/**
 * Leases: at most one process sends to a webhook. A process that dies leaves a lease that expires, and another process
 * takes it over.
 */

/** True when `owner` holds the lease now, for `lease_s`. Otherwise wakes its holder. */
export async function takeLease(
  tx: Tx,
  webhook_id: WebhookId,
  owner: string,
  lease_s: number,
): Promise<boolean> {
  for (;;) {
    const until = sql<Date>`now() + make_interval(secs => ${lease_s})`;
    const taken = await tx
      .insertInto('webhook_leases')
      .values({ webhook_id, owner, until })
      .onConflict((conflict) =>
        conflict
          .column('webhook_id')
          .doUpdateSet({ owner, until, woken: false })
          .where('webhook_leases.until', '<', sql<Date>`now()`),
      )
      .returning('owner')
      .executeTakeFirst();
    if (taken) return true;
    const woken = await tx
      .updateTable('webhook_leases')
      .set({ woken: true })
      .where('webhook_id', '=', webhook_id)
      .returning('owner')
      .executeTakeFirst();
    // Released between the two statements: no sender was woken, and the lease is free.
    if (!woken) continue;
    await notify(tx, 'webhook', webhook_id);
    return false;
  }
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

/** False: another process has seen new deliveries meanwhile, and `owner` keeps the lease, unless `force`. */
export async function releaseLease(
  tx: Tx,
  webhook_id: WebhookId,
  owner: string,
  force: boolean,
): Promise<boolean> {
  let release = tx
    .deleteFrom('webhook_leases')
    .where('webhook_id', '=', webhook_id)
    .where('owner', '=', owner);
  if (!force) release = release.where('woken', '=', false);
  const released = await release.returning('owner').executeTakeFirst();
  if (released || force) return true;
  const kept = await tx
    .updateTable('webhook_leases')
    .set({ woken: false })
    .where('webhook_id', '=', webhook_id)
    .where('owner', '=', owner)
    .returning('owner')
    .executeTakeFirst();
  return !kept;
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

/** Removes old attempts and deliveries, and all rows of deleted webhooks. Each statement removes few rows. */

const KEPT_DAYS = 14;
/** Events are kept for so long. A delivery without its event can't be sent. */
const EVENT_DAYS = 30;
/** Rows of one statement, which bounds its locks. */
const CHUNK = 10_000;

async function inChunks(db: Db, change: RawBuilder<unknown>): Promise<void> {
  for (;;) {
    const { numAffectedRows } = await change.execute(db);
    if ((numAffectedRows ?? 0n) < BigInt(CHUNK)) return;
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
        limit ${CHUNK})`,
    );
  }
}

/** To be called after old events were removed. */
export async function pruneDeliveries(db: Db): Promise<void> {
  await failWithoutEvent(db);
  await inChunks(
    db,
    sql`delete from webhook_attempts where ctid = any(array(
      select ctid from webhook_attempts where at < now() - make_interval(days => ${KEPT_DAYS}) limit ${CHUNK}))`,
  );
  await inChunks(
    db,
    sql`delete from webhook_deliveries where id in (
      select d.id from webhook_deliveries d
      where d.id < ${idOf('whd', KEPT_DAYS)} and (d.state <> 'pending' or d.id < ${idOf('whd', EVENT_DAYS)})
        and not exists (select from webhook_attempts a where a.delivery_id = d.id)
      limit ${CHUNK})`,
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
        select id from webhook_deliveries where webhook_id = ${id} limit ${CHUNK}
      ), attempts as (
        delete from webhook_attempts where delivery_id in (select id from gone)
      )
      delete from webhook_deliveries where id in (select id from gone)`,
    );
    await db.deleteFrom('webhook_leases').where('webhook_id', '=', id).execute();
    await db.deleteFrom('webhooks').where('id', '=', id).execute();
  }
}
