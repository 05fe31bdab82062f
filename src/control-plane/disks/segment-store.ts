/**
 * SQL of `segments`, `segment_holders` and `object_writers`: which objects (segments and maps of disks) exist, which
 * instances hold them, which a host may use now, and who is writing new ones.
 *
 * An instance holds every object that its generations need. A commit holds its new objects, a fork those that it shares
 * with its parent, and compaction those that it writes. An object without a holder is removed after a while.
 */
import { randomUUID } from 'node:crypto';
import { sql } from 'kysely';
import type { HostId, InstanceId, VmId } from '../../shared/ids.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';

/** Inserts new objects, held by the instance. */
export async function insertObjects(
  tx: Tx,
  instance_id: InstanceId,
  objects: readonly { readonly key: string; readonly size_bytes: number }[],
): Promise<void> {
  if (objects.length === 0) return;
  const keys = objects.map(({ key }) => key);
  // As arrays: a flush of a large disk has more values than the protocol allows parameters.
  await sql`
    insert into segments (key, size_bytes)
    select * from unnest(${keys}::text[], ${objects.map(({ size_bytes }) => size_bytes)}::bigint[])`.execute(
    tx,
  );
  await holdSegments(tx, instance_id, keys);
}

/**
 * Those of the stored `keys` that must stay: known objects, saved memory, memory that a suspend writes, a flush that may
 * still commit, and everything of an instance that somebody writes objects for (`writeObjects`).
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

// What decides which objects a host may use now: where instances are placed, and which objects they hold.

export interface WritablePlacement {
  readonly vm_id: VmId;
  readonly epoch: number;
  readonly generation: number;
}

/** Those of `ids` whose newest VM is on that host and may write, with the state of their disks. */
export async function writableHere(
  tx: Tx,
  host_id: HostId,
  ids: readonly InstanceId[],
): Promise<ReadonlyMap<InstanceId, WritablePlacement>> {
  if (ids.length === 0) return new Map();
  const { rows } = await sql<WritablePlacement & { instance_id: InstanceId }>`
    select i.id as instance_id, v.id as vm_id, d.epoch, d.generation
    from instances i join disks d on d.instance_id = i.id
    join lateral (
      select id, host_id, state, released from vms where instance_id = i.id order by boot desc limit 1
    ) v on v.host_id = ${host_id} and not v.released and v.state not in ('stopped', 'suspended')
    where i.id = any(${[...ids]}::text[]) and not i.deleting`.execute(tx);
  return new Map(rows.map(({ instance_id, ...placement }) => [instance_id, placement]));
}

/** Which of `keys` are held by instances whose newest VM is on the host and may write. */
export async function heldHere(
  tx: Tx,
  host_id: HostId,
  keys: readonly string[],
): Promise<ReadonlySet<string>> {
  if (keys.length === 0) return new Set();
  // Laterally, so that each object is looked up for the host's few instances, and not among the forks of a popular one.
  const { rows } = await sql<{ key: string }>`
    with mine as materialized (
      select v.instance_id from vms v join instances i on i.id = v.instance_id
      where v.host_id = ${host_id} and v.state not in ('stopped', 'suspended') and not v.released and not i.deleting
        and not exists (select from vms newer where newer.instance_id = v.instance_id and newer.boot > v.boot))
    select k.key from unnest(${[...keys]}::text[]) as k (key)
    where exists (
      select from mine cross join lateral (
        select from segment_holders h where h.key = k.key and h.instance_id = mine.instance_id limit 1) h)`.execute(
    tx,
  );
  return new Set(rows.map(({ key }) => key));
}

/** Those of `vms` and keys of memory that belong together: the VM resumes from it, or may have to. */
export async function memoryOf(
  tx: Tx,
  wanted: readonly { readonly key: string; readonly vm_id: VmId }[],
): Promise<ReadonlySet<string>> {
  if (wanted.length === 0) return new Set();
  const { rows } = await sql<{ key: string }>`
    select m.key from memory_images m
    join unnest(${wanted.map(({ key }) => key)}::text[], ${wanted.map(({ vm_id }) => vm_id)}::text[]) as w (key, vm_id)
      on m.key = w.key and m.vm_id = w.vm_id`.execute(tx);
  return new Set(rows.map(({ key }) => key));
}

// Who writes objects that no row names yet: a compaction, a checkpoint, an import.
//
// Such a writer first inserts a row, then writes its objects, then names them in a transaction that also deletes the row.
// The sweep of orphans first deletes the rows of writers that have taken longer than a day; then it leaves every instance
// with such a row alone. A writer whose row is gone names nothing. So a writer that slept, or whose clock or store's clock
// jumped, never names an object that was removed. (A flush needs no row: its objects have the number of the next
// generation. The VM's state `suspending` protects the memory that a suspend writes.)

/** Longer than any writer takes. By the database's clock. */
const WRITER_MAX = sql`interval '1 day'`;

/** Of {@link beginWriting}. */
export type WriterId = string & { readonly __writer: never };

/**
 * Runs `write` with a row that says that it writes objects for the instance. Null when the instance is being deleted. A killed
 * writer leaves its row for a day.
 */
export async function writeObjects<T>(
  db: Db,
  instance_id: InstanceId,
  write: (writer: WriterId) => Promise<T>,
): Promise<T | null> {
  const id = randomUUID() as WriterId;
  const { numAffectedRows } = await sql`
    insert into object_writers (id, instance_id)
    select ${id}, id from instances where id = ${instance_id} and not deleting`.execute(db);
  if (numAffectedRows !== 1n) return null;
  try {
    return await write(id);
  } finally {
    // Deleted already if the objects were named. Otherwise they are orphans from now on.
    await endWriting(db, id).catch(() => undefined);
  }
}

/** In the transaction that names the objects. False: they may be gone, and must not be named. */
export async function endWriting(tx: Tx, id: WriterId): Promise<boolean> {
  const { numDeletedRows } = await tx.deleteFrom('object_writers').where('id', '=', id).executeTakeFirst();
  return numDeletedRows === 1n;
}

/** From now on, those that have taken too long can name nothing. */
export async function expireWriters(db: Db): Promise<void> {
  await sql`delete from object_writers where since < now() - ${WRITER_MAX}`.execute(db);
}
