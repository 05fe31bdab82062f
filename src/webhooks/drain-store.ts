/**
 * A webhook's deliveries as its drain sees them. Who holds the lease is the only one to send, so what is sent need not
 * be claimed row by row: it is read, and its outcome written, a batch at a time.
 */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import type { OrgId, WebhookId } from '../lib/ids.ts';
import { EVENT_OF_FRESH, freshOf } from './fresh-store.ts';
import type { SentEvent } from './message.ts';
import type { WebhookStatus } from './model.ts';
import type { Tried } from './outcome-store.ts';

/** For `lease_s` from now. True when `owner` holds it now. Else its holder is told that there is more. */
export async function takeLease(
  tx: Tx,
  webhook_id: WebhookId,
  owner: string,
  lease_s: number,
): Promise<boolean> {
  const { rows } = await sql<{ mine: boolean }>`
    with lease as (
      insert into webhook_drains as l (webhook_id, owner, until)
      values (${webhook_id}, ${owner}, now() + make_interval(secs => ${lease_s}))
      on conflict (webhook_id) do update set
        owner = case when l.until < now() then excluded.owner else l.owner end,
        until = case when l.until < now() then excluded.until else l.until end,
        again = l.until >= now()
      returning owner = ${owner} and not again as mine
    )
    select mine, case when not mine then pg_notify('berth', ${`webhook:${webhook_id}`})::text end from lease`.execute(
    tx,
  );
  return rows[0]?.mine === true;
}

/** For all that a process holds; its drains must end when this has failed for as long as a lease. */
export async function renewLeases(
  tx: Tx,
  owner: string,
  webhook_ids: readonly WebhookId[],
  lease_s: number,
): Promise<void> {
  await sql`
    update webhook_drains set until = now() + make_interval(secs => ${lease_s})
    where webhook_id = any(${[...webhook_ids]}::text[]) and owner = ${owner}`.execute(tx);
}

/** Gives the lease back, but not (false) while there is more to look at, unless `force`. */
export async function giveLease(
  tx: Tx,
  webhook_id: WebhookId,
  owner: string,
  force: boolean,
): Promise<boolean> {
  const { rows } = await sql`
    delete from webhook_drains
    where webhook_id = ${webhook_id} and owner = ${owner} and (${force} or not again)
    returning webhook_id`.execute(tx);
  if (rows.length > 0 || force) return true;
  const { rows: kept } = await sql`
    update webhook_drains set again = false
    where webhook_id = ${webhook_id} and owner = ${owner}
    returning webhook_id`.execute(tx);
  // Nor is it ours any more when it is gone.
  return kept.length === 0;
}

/** What a drain must know of its webhook; it may change while it runs. */
export interface Receiver {
  readonly id: WebhookId;
  readonly url: string;
  readonly status: WebhookStatus;
  /** Null: it is deleted. */
  readonly org_id: OrgId | null;
  /** Its URL has answered 2xx. */
  readonly proven: boolean;
  /** Its last answer was a failure. */
  readonly failing: boolean;
  readonly slow: boolean;
  readonly secret: Buffer;
  /** Null also when its time is over. */
  readonly previous_secret: Buffer | null;
}

export async function findReceiver(tx: Tx, id: WebhookId): Promise<Receiver | undefined> {
  return tx
    .selectFrom('webhooks')
    .select(['id', 'url', 'status', 'org_id', 'slow', 'secret'])
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

export interface DueDelivery extends SentEvent, Tried {
  /** To be sent in the order of events; else tried again whenever it is due. */
  readonly in_order: boolean;
}

export interface DueQuery {
  /** Positions that are not asked for. */
  readonly held: readonly number[];
  /** What is sent in order is asked for from this position on. */
  readonly after: number;
  readonly first: number;
  readonly again: number;
}

const EVENT = sql`
  e.org_id, e.type, e.data, e.actor, e.sequence,
  to_char(e.created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as event_at`;

/** Of those that have rows, what is due and not among `held`: up to `first` in the order of events, and up to `again` that are tried again. */
export async function listDue(
  tx: Tx,
  webhook_id: WebhookId,
  { held, after, first, again }: DueQuery,
): Promise<readonly DueDelivery[]> {
  const due = sql`
    select id, event_id, position, instance_id, attempts, tries, created_at, next_attempt_at from webhook_deliveries
    where webhook_id = ${webhook_id} and state = 'pending'`;
  const { rows } = await sql<DueDelivery>`
    select d.id, d.position, d.instance_id, d.created_at::text as created_at, d.attempts, d.tries,
           d.next_attempt_at is null as in_order, d.event_id, ${EVENT}
    from (
      (${due} and next_attempt_at is null and position > ${after}
         and position <> all(${held.filter((each) => each > after)}::bigint[])
       order by position limit ${first})
      union all
      (${due} and next_attempt_at <= now() and position <> all(${[...held]}::bigint[])
       order by next_attempt_at limit ${again})
    ) as d join events e on e.id = d.event_id
    order by d.next_attempt_at nulls last, d.position`.execute(tx);
  return rows;
}

export interface Fresh {
  /** In the order of events. */
  readonly due: readonly DueDelivery[];
  /** All that was fresh up to this position is among them; null when there is no batch. */
  readonly read_to: number | null;
  /** There is more behind it. */
  readonly more: boolean;
}

const UNTRIED = { attempts: 0, tries: 0, in_order: true } as const;
type FreshRow = Omit<DueDelivery, keyof typeof UNTRIED>;

/** What is fresh after a position, up to `limit` (at least 1). */
export async function listFresh(tx: Tx, webhook_id: WebhookId, after: number, limit: number): Promise<Fresh> {
  const { rows } = await sql<FreshRow & { examined_to: number | null; more: boolean }>`
    with next as materialized (
      select * from webhook_batches where webhook_id = ${webhook_id} and position > ${after}
      order by position limit ${limit + 1}
    ), near as materialized (
      select * from (select *, sum(size) over (order by position) - size as before from next) as n where before < ${limit}
    )
    select f.*, examined.* from (
      select max(position) as examined_to, coalesce(max(position) < (select max(position) from next), false) as more from near
    ) as examined left join lateral (
      select f.id, f.position, e.instance_id, f.created_at::text as created_at, e.id as event_id, ${EVENT}
      from (
        ${freshOf(sql`near`, sql`f.position > ${after}`)} order by f.position limit ${limit}
      ) as f join events e on ${EVENT_OF_FRESH}
    ) as f on true
    order by f.position`.execute(tx);
  const [{ examined_to, more } = { examined_to: null, more: false }] = rows;
  const due = rows.filter(({ id }) => id !== null).map((row) => Object.assign(row, UNTRIED));
  if (due.length < limit) return { due, read_to: examined_to, more };
  return { due, read_to: due.at(-1)?.position ?? null, more: true };
}

/** When the next one is due, by the database's clock, as jobs are (`is_now`: it is already); undefined when none is. */
export async function nextDue(
  tx: Tx,
  webhook_id: WebhookId,
): Promise<{ readonly at: Date; readonly is_now: boolean } | undefined> {
  const { rows } = await sql<{ at: Date; is_now: boolean }>`
    select greatest(now(), at) as at, at <= now() as is_now from (
      select case when exists (
        select from webhook_deliveries where webhook_id = ${webhook_id} and state = 'pending' and next_attempt_at is null
      ) or exists (
        select from webhook_batches where webhook_id = ${webhook_id}
      ) then now()
      else (
        -- No earlier than that in a language whose times are milliseconds.
        select date_trunc('milliseconds', min(next_attempt_at)) + interval '1 millisecond' from webhook_deliveries
        where webhook_id = ${webhook_id} and state = 'pending' and next_attempt_at is not null
      ) end as at
    ) as next where at is not null`.execute(tx);
  return rows[0];
}

export interface Health {
  /** Nothing but failure for five days. */
  readonly hopeless: boolean;
  /** For an hour, and nobody was told. */
  readonly persists: boolean;
  readonly failing_told: boolean;
}

/** Notes that the receiver took something, or nothing at all, and for how long that has been so. */
export async function noteHealth(tx: Tx, webhook_id: WebhookId, took: boolean): Promise<Health | undefined> {
  const { rows } = await sql<Health>`
    update webhooks set
      failing_since = case when ${took} then null else coalesce(failing_since, now()) end,
      failing_told = failing_told and not ${took}
    where id = ${webhook_id} and (not ${took} or failing_since is not null)
    returning coalesce(failing_since <= now() - interval '5 days', false) as hopeless,
              coalesce(failing_since <= now() - interval '1 hour', false) as persists, failing_told`.execute(
    tx,
  );
  return rows[0];
}

export async function setLane(tx: Tx, webhook_id: WebhookId, slow: boolean): Promise<void> {
  await tx
    .updateTable('webhooks')
    .set({ slow })
    .where('id', '=', webhook_id)
    .where('slow', '<>', slow)
    .execute();
}

/** Webhooks that somebody should be sending for, and nobody is: their process died, or their job was lost. */
export async function listForgotten(
  tx: Tx,
): Promise<readonly { readonly id: WebhookId; readonly slow: boolean }[]> {
  const { rows } = await sql<{ id: WebhookId; slow: boolean }>`
    select w.id, w.slow from webhooks w
    where w.org_id is not null and w.status = 'enabled'
      and not exists (select from webhook_drains l where l.webhook_id = w.id and l.until >= now())
      and (
        exists (
          select from webhook_deliveries d
          where d.webhook_id = w.id and d.state = 'pending' and d.next_attempt_at < now() - interval '5 seconds'
        ) or exists (
          select from (
            select created_at from webhook_deliveries d
            where d.webhook_id = w.id and d.state = 'pending' and d.next_attempt_at is null order by d.position limit 1
          ) as first where first.created_at < now() - interval '5 seconds'
        ) or exists (
          select from webhook_batches b where b.webhook_id = w.id and b.created_at < now() - interval '5 seconds'
        )
      )`.execute(tx);
  return rows;
}
