/**
 * A webhook's deliveries as its drain sees them. Who holds the lease is the only one to send, so what is sent need not
 * be claimed row by row: it is read, and its outcome written, a batch at a time.
 */
import { CompiledQuery, sql } from 'kysely';
import { arrayText } from '../db/array-text.ts';
import type { Tx } from '../db/pool.ts';
import type { WebhookDeliveryId, WebhookId } from '../lib/ids.ts';
import type { SentEvent } from './message.ts';
import type { DeliveryState, WebhookStatus } from './model.ts';

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
  readonly deleted: boolean;
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
    .select(['id', 'url', 'status', 'slow', 'secret'])
    .select(sql<boolean>`org_id is null`.as('deleted'))
    .select(sql<boolean>`failing_since is not null`.as('failing'))
    .select(
      sql<Buffer | null>`case when previous_expires_at > now() then previous_secret end`.as(
        'previous_secret',
      ),
    )
    .where('id', '=', id)
    .executeTakeFirst();
}

export interface DueDelivery extends SentEvent {
  readonly id: WebhookDeliveryId;
  readonly position: number;
  readonly instance_id: string | null;
  readonly attempts: number;
  readonly tries: number;
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

/** What is due and not among `held`: up to `first` in the order of events, and up to `again` that are tried again. */
export async function listDue(
  tx: Tx,
  webhook_id: WebhookId,
  { held, after, first, again }: DueQuery,
): Promise<readonly DueDelivery[]> {
  const due = sql`
    select id, event_id, position, instance_id, attempts, tries, next_attempt_at from webhook_deliveries
    where webhook_id = ${webhook_id} and state = 'pending'`;
  const { rows } = await sql<DueDelivery>`
    select d.id, d.position, d.instance_id, d.attempts, d.tries, d.next_attempt_at is null as in_order, d.event_id,
           e.org_id, e.type, e.data, e.actor, e.sequence,
           to_char(e.created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as event_at
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

/** When the next one is due, by the database's clock, as jobs are (`is_now`: it is already); undefined when none is. */
export async function nextDue(
  tx: Tx,
  webhook_id: WebhookId,
): Promise<{ readonly at: Date; readonly is_now: boolean } | undefined> {
  const { rows } = await sql<{ at: Date; is_now: boolean }>`
    select greatest(now(), at) as at, at <= now() as is_now from (
      select case when exists (
        select from webhook_deliveries where webhook_id = ${webhook_id} and state = 'pending' and next_attempt_at is null
      ) then now()
      else (
        -- No earlier than that in a language whose times are milliseconds.
        select date_trunc('milliseconds', min(next_attempt_at)) + interval '1 millisecond' from webhook_deliveries
        where webhook_id = ${webhook_id} and state = 'pending' and next_attempt_at is not null
      ) end as at
    ) as next where at is not null`.execute(tx);
  return rows[0];
}

export interface Outcome {
  readonly id: WebhookDeliveryId;
  /** The URL that was asked: the webhook may have another by now. */
  readonly address: string;
  /** Of the attempt, counted over the delivery's life. */
  readonly number: number;
  readonly tries: number;
  readonly at: Date;
  readonly status: number | null;
  readonly latency_ms: number;
  readonly error: string | null;
  readonly response: string;
  readonly state: DeliveryState;
  /** While pending. */
  readonly retry_in_ms: number | null;
}

/** Of the first attempt, which is the only one most deliveries have: it stands in the delivery's own row. */
const FIRST = ['at', 'status', 'latency_ms', 'error', 'response'] as const;

function keptFirst(name: (typeof FIRST)[number]): string {
  return `first_${name} = case when done.number = 1 and d.first_at is null then done.${name} else d.first_${name} end`;
}

/** It is still pending where this attempt found it. Else it was asked for anew, failed by a disabling, or told of already. */
const GOES_ON = "d.state = 'pending' and d.tries = done.tries - 1";

/** For attempts that are not the first. */
const LATER = `, later as (
    insert into webhook_attempts (delivery_id, number, at, status, latency_ms, error, response)
    select id, number, at, status, latency_ms, error, response from done where number > 1
    on conflict do nothing
  )`;

/** Composed once: for each batch anew would cost as much as its arrays. */
const RECORD = { first: recordStatement(''), later: recordStatement(LATER) };

function recordStatement(later: string): string {
  return `
  with unsynced as materialized (
    select case when $11 then set_config('synchronous_commit', 'off', true) end
  ), done as (
    select * from unnest(
      $1::text[], $2::int[], $3::int[], $4::timestamptz[], $5::int[], $6::int[], $7::text[], $8::text[], $9::text[],
      $10::bigint[]
    ) as o (id, number, tries, at, status, latency_ms, error, response, state, retry_in_ms)
  )${later}
  update webhook_deliveries d set
    attempts = greatest(d.attempts, done.number),
    tries = case when ${GOES_ON} then done.tries else d.tries end,
    state = case when done.state = 'delivered' or (${GOES_ON}) then done.state else d.state end,
    next_attempt_at = case
      when ${GOES_ON} then now() + done.retry_in_ms * interval '1 millisecond'
      when done.state <> 'delivered' then d.next_attempt_at
    end,
    ${FIRST.map(keptFirst).join(', ')}
  from unsynced, done where d.id = done.id`;
}

/**
 * One statement for all of them. A failure says how it goes on only where {@link GOES_ON}; a delivery always counts.
 * `unsynced`: as a transaction of its own that does not wait for the disk. What is lost of it when the database dies is
 * sent again, as when its sender dies before it writes.
 */
export async function recordOutcomes(tx: Tx, outcomes: readonly Outcome[], unsynced: boolean): Promise<void> {
  const column = <K extends keyof Outcome>(name: K) => outcomes.map((each) => each[name]);
  const values = [
    column('id'),
    column('number'),
    column('tries'),
    outcomes.map(({ at }) => at.toISOString()),
    column('status'),
    column('latency_ms'),
    column('error'),
    column('response'),
    column('state'),
    column('retry_in_ms'),
  ].map(arrayText);
  const statement = outcomes.some(({ number }) => number > 1) ? RECORD.later : RECORD.first;
  await tx.executeQuery(CompiledQuery.raw(statement, [...values, unsynced]));
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
        )
      )`.execute(tx);
  return rows;
}
