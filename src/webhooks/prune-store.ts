/** What is past its time: attempts after 14 days, deliveries without any, and what deleted webhooks have left. */
import { type RawBuilder, sql } from 'kysely';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { newId } from '../lib/ids.ts';

const KEPT_DAYS = 14;
/** No event is older, so nothing can be sent for it. */
const EVENT_DAYS = 30;
/** Of one statement: locks and dead rows stay few, however much there is. */
const CHUNK = 10_000;

async function inChunks(db: Db, remove: RawBuilder<unknown>): Promise<void> {
  for (;;) {
    const { numAffectedRows } = await remove.execute(db);
    if ((numAffectedRows ?? 0n) < BigInt(CHUNK)) return;
  }
}

/** The smallest id of so many days ago: ids sort by time. */
function idOf(days: number): string {
  const id = newId('whd', Date.now() - days * 86_400_000);
  return `${id.slice(0, 'whd_'.length + 10)}${'0'.repeat(16)}`;
}

export async function pruneDeliveries(db: Db): Promise<void> {
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
      where d.id < ${idOf(KEPT_DAYS)} and (d.state <> 'pending' or d.id < ${idOf(EVENT_DAYS)})
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
        select id from webhook_deliveries where id < ${idOf(KEPT_DAYS)} and first_at < ${days_ago} limit ${CHUNK})`,
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
      sql`with gone as (
        delete from webhook_deliveries where id in (
          select id from webhook_deliveries where webhook_id = ${id} limit ${CHUNK})
        returning id
      ), attempts as (
        delete from webhook_attempts where delivery_id in (select id from gone)
      )
      select id from gone`,
    );
    await transaction(db, (tx: Tx) => tx.deleteFrom('webhooks').where('id', '=', id).execute());
  }
}
