/** Removes old attempts and deliveries, and all rows of deleted webhooks. Each statement removes few rows. */
import { type RawBuilder, sql } from 'kysely';
import { newId } from '../../shared/ids.ts';
import type { Db } from '../db/pool.ts';

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
