/** Writes the outcomes of a webhook's deliveries, several in one statement, and its health. */
import { sql } from 'kysely';
import type { WebhookId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Outcome } from './outcome.ts';

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
