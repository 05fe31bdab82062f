/**
 * What is past its time: attempts after 14 days, deliveries without any or without their event, batches without their
 * events, and what deleted webhooks have left.
 */
import { type RawBuilder, sql } from 'kysely';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { newId } from '../lib/ids.ts';

const KEPT_DAYS = 14;
/** No event is older, so nothing can be sent for it. */
const EVENT_DAYS = 30;
/** Of one statement: locks and dead rows stay few, however much there is. */
const CHUNK = 10_000;

async function inChunks(db: Db, change: RawBuilder<unknown>): Promise<void> {
  for (;;) {
    const { numAffectedRows } = await change.execute(db);
    if ((numAffectedRows ?? 0n) < BigInt(CHUNK)) return;
  }
}

/** The smallest id of so many days ago: ids sort by time. */
function idOf(kind: 'whd' | 'evt', days: number): string {
  const id = newId(kind, Date.now() - days * 86_400_000);
  return `${id.slice(0, `${kind}_`.length + 10)}${'0'.repeat(16)}`;
}

/** What was asked for again late, of a receiver that asks for long waits: nothing is left to be sent. */
async function failWithoutEvent(db: Db): Promise<void> {
  // Each of the two has an index of its own.
  for (const when of [sql`is null`, sql`is not null`]) {
    await inChunks(
      db,
      sql`update webhook_deliveries set state = 'failed', next_attempt_at = null where id in (
        select d.id from webhook_deliveries d
        where d.state = 'pending' and d.next_attempt_at ${when} and d.event_id < ${idOf('evt', EVENT_DAYS)}
          and not exists (select from events e where e.id = d.event_id)
        limit ${CHUNK})`,
    );
  }
}

/** To be called when old events have been removed. */
export async function pruneDeliveries(db: Db): Promise<void> {
  await failWithoutEvent(db);
  const days_ago = sql`now() - make_interval(days => ${KEPT_DAYS})`;
  await inChunks(
    db,
    sql`delete from webhook_attempts where ctid = any(array(
      select ctid from webhook_attempts where at < ${days_ago} limit ${CHUNK}))`,
  );
  await inChunks(
    db,
    sql`delete from webhook_deliveries where id in (
      select d.id from webhook_deliveries d
      where d.id < ${idOf('whd', KEPT_DAYS)} and (d.state <> 'pending' or d.id < ${idOf('whd', EVENT_DAYS)})
        and (d.first_at is null or d.first_at < ${days_ago})
        and not exists (select from webhook_attempts a where a.delivery_id = d.id)
      limit ${CHUNK})`,
  );
  // Of those that are left, since they were tried again later.
  await inChunks(
    db,
    sql`update webhook_deliveries set
        first_at = null, first_status = null, first_latency_ms = null, first_error = null, first_response = null
      where id in (
        select id from webhook_deliveries where id < ${idOf('whd', KEPT_DAYS)} and first_at < ${days_ago} limit ${CHUNK})`,
  );
  await inChunks(
    db,
    sql`delete from webhook_batches where (webhook_id, position) in (
      select webhook_id, position from webhook_batches
      where created_at < now() - make_interval(days => ${EVENT_DAYS}) limit ${CHUNK})`,
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
    await transaction(db, async (tx: Tx) => {
      await tx.deleteFrom('webhook_batches').where('webhook_id', '=', id).execute();
      await tx.deleteFrom('webhook_drains').where('webhook_id', '=', id).execute();
      await tx.deleteFrom('webhooks').where('id', '=', id).execute();
    });
  }
}
