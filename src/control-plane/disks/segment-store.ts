/**
 * The known objects (segments and maps) and their holders. Every instance with a generation that needs an object holds it: a
 * commit holds its new objects, a fork the shared ones, compaction those it writes. An object without a holder is removed.
 */
import { sql } from 'kysely';
import type { InstanceId } from '../../shared/ids.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';

/** Inserts new objects, held by the instance. */
export async function insertObjects(
  tx: Tx,
  instance_id: InstanceId,
  objects: readonly { readonly key: string; readonly size_bytes: number; readonly entries: number }[],
): Promise<void> {
  if (objects.length === 0) return;
  const keys = objects.map(({ key }) => key);
  // As arrays: a flush of a large disk has more values than the protocol allows parameters.
  await sql`
    insert into segments (key, size_bytes, entries)
    select * from unnest(${keys}::text[], ${objects.map(({ size_bytes }) => size_bytes)}::bigint[],
      ${objects.map(({ entries }) => entries)}::int[])`.execute(tx);
  await holdSegments(tx, instance_id, keys);
}

/**
 * Those of the stored `keys` that must stay: known objects, saved memory, memory that a suspend writes, a flush that may
 * still commit, and everything of an instance that somebody writes objects for (writer-store.ts).
 */
export async function knownObjects(tx: Tx, keys: readonly string[]): Promise<ReadonlySet<string>> {
  const { rows } = await sql<{ key: string }>`
    select key from unnest(${[...keys]}::text[]) as key
    where exists (select from segments s where s.key = key.key)
      or exists (
        select from memory_images m where m.instance_id = split_part(key.key, '/', 2) and starts_with(key.key, m.key || '/'))
      or exists (
        select from disks d where d.instance_id = split_part(key, '/', 2)
          and key like 'disks/' || d.instance_id || '/seg/' || d.epoch || '/' || (d.generation + 1) || '-%')
      or exists (
        select from vms v where v.instance_id = split_part(key.key, '/', 2) and v.state = 'suspending'
          and starts_with(key.key, 'disks/' || v.instance_id || '/mem/'))
      or exists (select from object_writers w where w.instance_id = split_part(key.key, '/', 2))`.execute(tx);
  return new Set(rows.map(({ key }) => key));
}

/** Makes the instance a holder of existing segments. */
export async function holdSegments(tx: Tx, instance_id: InstanceId, keys: readonly string[]): Promise<void> {
  await sql`
    insert into segment_holders (key, instance_id) select unnest(${[...keys]}::text[]), ${instance_id}
    on conflict do nothing`.execute(tx);
}

/** Those of `keys` that another instance holds. */
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

/** Those of `keys` that the instance does not hold, so that they may be removed at any time. */
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

/** Releases all objects of the instance, and deletes the rows of `removed` objects that have no other holder. */
export async function dropHolder(tx: Tx, instance_id: InstanceId, removed: readonly string[]): Promise<void> {
  await sql`delete from segment_holders where instance_id = ${instance_id}`.execute(tx);
  await sql`
    delete from segments s where key = any(${[...removed]}::text[])
      and not exists (select from segment_holders h where h.key = s.key)`.execute(tx);
}

/** Records since when segments have no holder. Returns some that have had none for `delay_ms`. */
export async function listUnheld(db: Db, delay_ms: number, limit: number): Promise<string[]> {
  await sql`
    update segments s set unheld_at = null where unheld_at is not null
      and exists (select from segment_holders h where h.key = s.key)`.execute(db);
  await sql`
    update segments s set unheld_at = now() where unheld_at is null
      and not exists (select from segment_holders h where h.key = s.key)`.execute(db);
  const { rows } = await sql<{ key: string }>`
    select key from segments where unheld_at <= now() - ${delay_ms} * interval '1 millisecond'
    order by unheld_at, key limit ${limit}`.execute(db);
  return rows.map(({ key }) => key);
}

/**
 * Removes a segment's object by `remove` and then its row, unless it has a holder again. The row's lock keeps new holders out
 * meanwhile. False when the segment stays.
 */
export async function removeUnheld(db: Db, key: string, remove: () => Promise<void>): Promise<boolean> {
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

/** The bytes of objects that nothing needs any more, and that stay for a while (`free-segments`). */
export async function sumUnheld(tx: Tx): Promise<number> {
  const { rows } = await sql<{ bytes: number }>`
    select coalesce(sum(size_bytes), 0)::bigint as bytes from segments s
    where not exists (select from segment_holders h where h.key = s.key)`.execute(tx);
  return rows[0]?.bytes ?? 0;
}

/** The bytes of all disks in the object store; objects that forks share count once. */
export async function sumStored(tx: Tx): Promise<number> {
  const { rows } = await sql<{ bytes: number }>`
    select coalesce(sum(size_bytes), 0)::bigint as bytes from segments`.execute(tx);
  return rows[0]?.bytes ?? 0;
}
