/**
 * Says who writes objects that no row names yet: a compaction, a checkpoint, an import.
 *
 * Such a writer first inserts a row, then writes its objects, then names them in a transaction that also deletes the row. The
 * sweep leaves the orphans of an instance with such a row alone. It deletes rows of writers that have taken longer than a day
 * first, and a writer whose row is gone names nothing. So a writer that slept, or whose clock or store's clock jumped, never
 * names an object that was removed. (A flush needs no row: its objects have the number of the next generation. The VM's state
 * `suspending` protects the memory that a suspend writes.)
 */
import { randomUUID } from 'node:crypto';
import { sql } from 'kysely';
import type { InstanceId } from '../../shared/ids.ts';
import type { Db, Tx } from '../db/pool.ts';

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
