/**
 * SQL of `denied_destinations`: which destinations each instance's VM was denied to reach, how often, and when it last
 * tried. Of each instance, the table keeps the newest 100, and those that raised an event in the last ten minutes.
 */
import { sql } from 'kysely';
import type { HostId, InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Database } from '../db/tables.ts';

/** The destinations that are kept of each instance. */
export const DENIED_KEPT = 100;
/** A destination has at most one event in this time. */
const EVENT_EVERY = sql`interval '10 minutes'`;

export type DeniedRow = Database['denied_destinations'];
export type NewDenied = Omit<DeniedRow, 'event_at' | 'instance_id'>;

/** Of these instances, those whose newest VM is or was on this host. */
export async function listOn(tx: Tx, host_id: HostId, ids: readonly InstanceId[]): Promise<InstanceId[]> {
  const { rows } = await sql<{ id: InstanceId }>`
    select i.id from instances i
    where i.id = any(${ids}::text[]) and not i.deleting
      and ${host_id} = (select v.host_id from vms v where v.instance_id = i.id order by v.boot desc limit 1)
    order by i.id`.execute(tx);
  return rows.map(({ id }) => id);
}

/** Adds attempts; different destinations each. */
export async function addDenied(
  tx: Tx,
  instance_id: InstanceId,
  denied: readonly NewDenied[],
): Promise<void> {
  await tx
    .insertInto('denied_destinations')
    .values(denied.map((each) => ({ ...each, instance_id, event_at: null })))
    .onConflict((conflict) =>
      conflict.columns(['instance_id', 'destination', 'port']).doUpdateSet({
        at: sql`greatest(denied_destinations.at, excluded.at)`,
        address: sql`coalesce(excluded.address, denied_destinations.address)`,
        attempts: sql`denied_destinations.attempts + excluded.attempts`,
      }),
    )
    .execute();
}

/**
 * Marks those of `denied` that get an event now, and returns them: none that had one in the last ten minutes, and no more than
 * `most` of the instance in that time.
 */
export async function claimEvents(
  tx: Tx,
  instance_id: InstanceId,
  denied: readonly NewDenied[],
  most: number,
): Promise<DeniedRow[]> {
  const { rows } = await sql<DeniedRow>`
    update denied_destinations d set event_at = now()
    from (
      select destination, port from denied_destinations
      where instance_id = ${instance_id}
        and (event_at is null or event_at < now() - ${EVENT_EVERY})
        and (destination, port) in (
          select * from unnest(${denied.map((each) => each.destination)}::text[], ${denied.map((each) => each.port)}::int[]))
      order by at, destination, port
      limit greatest(0, ${most} - (
        select count(*) from denied_destinations
        where instance_id = ${instance_id} and event_at >= now() - ${EVENT_EVERY}))
    ) due
    where d.instance_id = ${instance_id} and d.destination = due.destination and d.port = due.port
    returning d.*`.execute(tx);
  return rows;
}

/** Keeps the newest, and those whose event is not ten minutes old, which bounds the events. */
export async function trimDenied(tx: Tx, instance_id: InstanceId): Promise<void> {
  await sql`
    delete from denied_destinations
    where instance_id = ${instance_id}
      and (event_at is null or event_at < now() - ${EVENT_EVERY})
      and (destination, port) not in (
        select destination, port from denied_destinations
        where instance_id = ${instance_id} order by at desc limit ${DENIED_KEPT})`.execute(tx);
}

/** Newest first. */
export async function listDenied(tx: Tx, instance_id: InstanceId): Promise<DeniedRow[]> {
  return tx
    .selectFrom('denied_destinations')
    .selectAll()
    .where('instance_id', '=', instance_id)
    .orderBy('at', 'desc')
    .orderBy('destination')
    .limit(DENIED_KEPT)
    .execute();
}
