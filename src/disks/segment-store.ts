/**
 * Which objects there are (segments, and maps as well), and which instances hold them. One is held by every instance that
 * has a generation made of it: a commit holds what it brings, a fork what it shares, compaction what it writes. Without a
 * holder it is nobody's.
 */
import { sql } from 'kysely';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import type { InstanceId } from '../lib/ids.ts';

/** New objects, held by the instance that they were written for. */
export async function insertObjects(
  tx: Tx,
  instance_id: InstanceId,
  objects: readonly { readonly key: string; readonly size_bytes: number; readonly entries: number }[],
): Promise<void> {
  if (objects.length === 0) return;
  const keys = objects.map(({ key }) => key);
  // As arrays: a parameter for each value would be more than the protocol takes for a flush of a large disk.
  await sql`
    insert into segments (key, size_bytes, entries)
    select * from unnest(${keys}::text[], ${objects.map(({ size_bytes }) => size_bytes)}::bigint[],
      ${objects.map(({ entries }) => entries)}::int[])`.execute(tx);
  await holdSegments(tx, instance_id, keys);
}

/** Of objects in the store those that nobody may lack: known, of a VM's memory, or of a flush that may still be committed. */
export async function knownObjects(tx: Tx, keys: readonly string[]): Promise<ReadonlySet<string>> {
  const { rows } = await sql<{ key: string }>`
    select key from unnest(${[...keys]}::text[]) as key
    where exists (select from segments s where s.key = key.key)
      or exists (
        select from memory_images m where m.instance_id = split_part(key.key, '/', 2) and starts_with(key.key, m.key || '/'))
      or exists (
        select from disks d where d.instance_id = split_part(key, '/', 2)
          and key like 'disks/' || d.instance_id || '/seg/' || d.epoch || '/' || (d.generation + 1) || '-%')`.execute(
    tx,
  );
  return new Set(rows.map(({ key }) => key));
}

/** Makes the instance a holder of segments that others hold. */
export async function holdSegments(tx: Tx, instance_id: InstanceId, keys: readonly string[]): Promise<void> {
  await sql`
    insert into segment_holders (key, instance_id) select unnest(${[...keys]}::text[]), ${instance_id}
    on conflict do nothing`.execute(tx);
}

/** Of `keys` those that another instance holds. */
export async function heldByOthers(
  tx: Tx,
  instance_id: InstanceId,
  keys: readonly string[],
): Promise<ReadonlySet<string>> {
  const { rows } = await sql<{ key: string }>`
    select distinct key from segment_holders
    where key = any(${[...keys]}::text[]) and instance_id <> ${instance_id}`.execute(tx);
  return new Set(rows.map(({ key }) => key));
}

/** Of `keys` those that the instance does not hold: nothing keeps them from being removed. */
export async function notHeldBy(
  tx: Tx,
  instance_id: InstanceId,
  keys: readonly string[],
): Promise<readonly string[]> {
  const { rows } = await sql<{ key: string }>`
    select key from unnest(${[...keys]}::text[]) as key where not exists (
      select from segment_holders h where h.key = key.key and h.instance_id = ${instance_id})`.execute(tx);
  return rows.map(({ key }) => key);
}

/** The instance holds nothing any more; of `removed`, whose objects are gone, those that nobody holds are forgotten. */
export async function dropHolder(tx: Tx, instance_id: InstanceId, removed: readonly string[]): Promise<void> {
  await sql`delete from segment_holders where instance_id = ${instance_id}`.execute(tx);
  await sql`
    delete from segments s where key = any(${[...removed]}::text[])
      and not exists (select from segment_holders h where h.key = s.key)`.execute(tx);
}

/** Notes since when segments have no holder, and answers some that had none for `horizon_ms`. */
export async function listUnheld(db: Db, horizon_ms: number, limit: number): Promise<string[]> {
  await sql`
    update segments s set unheld_at = null where unheld_at is not null
      and exists (select from segment_holders h where h.key = s.key)`.execute(db);
  await sql`
    update segments s set unheld_at = now() where unheld_at is null
      and not exists (select from segment_holders h where h.key = s.key)`.execute(db);
  const { rows } = await sql<{ key: string }>`
    select key from segments where unheld_at <= now() - ${horizon_ms} * interval '1 millisecond'
    order by unheld_at, key limit ${limit}`.execute(db);
  return rows.map(({ key }) => key);
}

/**
 * Forgets a segment once `remove` has removed its object, unless it has a holder (again). Its row is locked meanwhile, so
 * that nobody can become one. False when it stays.
 */
export async function forgetUnheld(db: Db, key: string, remove: () => Promise<void>): Promise<boolean> {
  return transaction(db, async (tx) => {
    const { rows } = await sql<{ held: boolean }>`
      select exists (select from segment_holders h where h.key = s.key) as held
      from segments s where key = ${key} and unheld_at is not null for update skip locked`.execute(tx);
    const [row] = rows;
    if (!row) return false;
    if (row.held) {
      await sql`update segments set unheld_at = null where key = ${key}`.execute(tx);
      return false;
    }
    await remove();
    await sql`delete from segments where key = ${key}`.execute(tx);
    return true;
  });
}
