/** What became of deliveries: written a batch at a time, with the row of each that had none yet. */
import { CompiledQuery } from 'kysely';
import { arrayText } from '../db/array-text.ts';
import type { Tx } from '../db/pool.ts';
import type { EventId, InstanceId, WebhookDeliveryId, WebhookId } from '../lib/ids.ts';
import type { DeliveryState } from './model.ts';

/** A delivery as it was before its attempt. */
export interface Tried {
  readonly id: WebhookDeliveryId;
  readonly event_id: EventId;
  readonly position: number;
  readonly instance_id: InstanceId | null;
  /** As PostgreSQL writes it. */
  readonly created_at: string;
  /** Over its life, and since it was last asked for. */
  readonly attempts: number;
  readonly tries: number;
}

export interface Outcome {
  readonly delivery: Tried;
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
  return `first_${name} = case when excluded.attempts = 1 and d.first_at is null then excluded.first_${name} else d.first_${name} end`;
}

/** It is still pending where this attempt found it. Else it was asked for anew, failed by a disabling, or told of already. */
const GOES_ON = "d.state = 'pending' and d.tries = excluded.tries - 1";

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
    select case when $2 then set_config('synchronous_commit', 'off', true) end
  ), done as (
    select * from unnest(
      $3::text[], $4::text[], $5::bigint[], $6::text[], $7::timestamptz[], $8::int[], $9::int[], $10::timestamptz[],
      $11::int[], $12::int[], $13::text[], $14::text[], $15::text[], $16::bigint[]
    ) as o (
      id, event_id, position, instance_id, created_at, number, tries, at, status, latency_ms, error, response, state,
      retry_in_ms
    )
    -- Its rows are removed with it, once.
    where exists (select from webhooks where id = $1)
  )${later}
  insert into webhook_deliveries as d (
    id, webhook_id, event_id, position, instance_id, created_at, attempts, tries, state, next_attempt_at,
    first_at, first_status, first_latency_ms, first_error, first_response
  )
  select id, $1, event_id, position, instance_id, created_at, number, tries, state,
    now() + retry_in_ms * interval '1 millisecond',
    case when number = 1 then at end, case when number = 1 then status end, case when number = 1 then latency_ms end,
    case when number = 1 then error end, case when number = 1 then response end
  from unsynced, done
  on conflict (webhook_id, position) do update set
    attempts = greatest(d.attempts, excluded.attempts),
    tries = case when ${GOES_ON} then excluded.tries else d.tries end,
    state = case when excluded.state = 'delivered' or (${GOES_ON}) then excluded.state else d.state end,
    next_attempt_at = case
      when ${GOES_ON} then excluded.next_attempt_at
      when excluded.state <> 'delivered' then d.next_attempt_at
    end,
    ${FIRST.map(keptFirst).join(', ')}`;
}

/**
 * One statement for all of them. A failure says how it goes on only where {@link GOES_ON}; a delivery always counts.
 * `unsynced`: as a transaction of its own that does not wait for the disk. What is lost of it when the database dies is
 * sent again, as when its sender dies before it writes.
 */
export async function recordOutcomes(
  tx: Tx,
  webhook_id: WebhookId,
  outcomes: readonly Outcome[],
  unsynced: boolean,
): Promise<void> {
  // Whoever else writes several at once goes by their positions too.
  const sorted = outcomes.toSorted((a, b) => a.delivery.position - b.delivery.position);
  const of = <K extends keyof Tried>(name: K) => sorted.map(({ delivery }) => delivery[name]);
  const column = <K extends keyof Outcome>(name: K) => sorted.map((each) => each[name]);
  const values = [
    of('id'),
    of('event_id'),
    of('position'),
    of('instance_id'),
    of('created_at'),
    column('number'),
    column('tries'),
    sorted.map(({ at }) => at.toISOString()),
    column('status'),
    column('latency_ms'),
    column('error'),
    column('response'),
    column('state'),
    column('retry_in_ms'),
  ].map(arrayText);
  const statement = sorted.some(({ number }) => number > 1) ? RECORD.later : RECORD.first;
  await tx.executeQuery(CompiledQuery.raw(statement, [webhook_id, unsynced, ...values]));
}
