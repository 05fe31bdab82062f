/**
 * Deliveries that were not tried yet. They have no rows: a batch of events is one row for each webhook that wants them,
 * and a delivery gets its row with its first outcome, or when something is to be said of it before that. So one that has
 * a row is not fresh any more, whatever its batch says.
 */
import { type RawBuilder, sql } from 'kysely';
import { arrayText } from '../db/array-text.ts';
import type { Db, Tx } from '../db/pool.ts';
import { newId, type WebhookDeliveryId, type WebhookId } from '../lib/ids.ts';
import type { DeliveryState } from './model.ts';

export interface NewBatch {
  readonly webhook_id: WebhookId;
  /** Of events, ascending: greater than any that this webhook was given before. */
  readonly positions: readonly number[];
}

/** Of one statement: an element takes about forty bytes. */
const CHUNK = 10_000;

/** Of events that the head comes to in this transaction. */
export async function insertBatches(tx: Tx, batches: readonly NewBatch[]): Promise<void> {
  const now_ms = Date.now();
  for (const some of chunksOf(batches)) {
    const of = (text: (batch: NewBatch) => string | number) => arrayText(some.map(text));
    await sql`
      insert into webhook_batches (webhook_id, position, positions, ids, size)
      select webhook_id, position, positions::bigint[], ids::text[], size from unnest(
        ${of((batch) => batch.webhook_id)}::text[], ${of(({ positions }) => positions.at(-1) ?? 0)}::bigint[],
        ${of(({ positions }) => arrayText(positions))}::text[],
        ${of(({ positions }) => arrayText(positions.map(() => newId('whd', now_ms))))}::text[],
        ${of(({ positions }) => positions.length)}::int[]
      ) as b (webhook_id, position, positions, ids, size)`.execute(tx);
  }
}

function* chunksOf(batches: readonly NewBatch[]): Generator<readonly NewBatch[]> {
  let chunk: NewBatch[] = [];
  let size = 0;
  for (const batch of batches) {
    chunk.push(batch);
    size += batch.positions.length;
    if (size < CHUNK) continue;
    yield chunk;
    chunk = [];
    size = 0;
  }
  if (chunk.length > 0) yield chunk;
}

/**
 * `webhook_id`, `id`, `position` and `created_at` of what is fresh in `batches`, which is several rows or one; `where` is
 * about `f` and `b`. What has rows is looked for batch by batch, between its first position and its last: joined, the
 * planner goes through all rows that the webhook has, most of which came before.
 */
export function freshOf(batches: RawBuilder<unknown>, where: RawBuilder<unknown> = sql`true`) {
  return sql`
    select b.webhook_id, f.id, f.position, b.created_at
    from ${batches} as b
    cross join lateral (
      select array(
        select d.position from webhook_deliveries d
        where d.webhook_id = b.webhook_id and d.position between b.positions[1] and b.position
      ) as positions
      -- Once for a batch, not for each that is in it.
      offset 0
    ) as known
    cross join lateral unnest(b.ids, b.positions) as f (id, position)
    where ${where} and f.position <> all(known.positions)`;
}

/** The event `e` of what is fresh, `f`, by the index of positions (migration 000040). */
export const EVENT_OF_FRESH = sql`e.position + 0 = f.position`;

const BATCHES = sql`webhook_batches`;
const ROW = sql`(id, webhook_id, event_id, position, instance_id, state, created_at)`;

function rowsOf(fresh: RawBuilder<unknown>, state: DeliveryState) {
  return sql`
    select f.id, f.webhook_id, e.id, f.position, e.instance_id, ${state}, f.created_at
    from (${fresh}) as f join events e on ${EVENT_OF_FRESH}
    order by f.position`;
}

/** What is fresh of a webhook has failed. */
export async function failFresh(tx: Tx, webhook_id: WebhookId): Promise<void> {
  await sql`
    with gone as (delete from webhook_batches where webhook_id = ${webhook_id} returning *)
    insert into webhook_deliveries ${ROW} ${rowsOf(freshOf(sql`gone`), 'failed')} on conflict do nothing`.execute(
    tx,
  );
}

/** Gives what is fresh of a webhook its rows, or one of it: pending, as before. */
export async function writeFresh(tx: Tx, webhook_id: WebhookId, id?: WebhookDeliveryId): Promise<void> {
  const of_one = id === undefined ? sql`` : sql`and f.id = ${id}`;
  const some = freshOf(BATCHES, sql`b.webhook_id = ${webhook_id} ${of_one}`);
  await sql`insert into webhook_deliveries ${ROW} ${rowsOf(some, 'pending')} on conflict do nothing`.execute(
    tx,
  );
}

/**
 * Removes the webhook's batches up to there of which nothing is fresh any more. Not waited for on disk: what comes back
 * when the database dies is removed by the next one.
 */
export async function clearBatches(db: Db, webhook_id: WebhookId, up_to: number): Promise<void> {
  await sql`
    with unsynced as materialized (select set_config('synchronous_commit', 'off', true))
    delete from webhook_batches b using unsynced
    where b.webhook_id = ${webhook_id} and b.position <= ${up_to} and b.size = (
      select count(*) from webhook_deliveries d where d.webhook_id = b.webhook_id and d.position = any(b.positions)
    )`.execute(db);
}
