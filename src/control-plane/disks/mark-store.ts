/** The mark of this installation's object store (object-store/claim-store.ts). */
import { sql } from 'kysely';
import type { Db, Tx } from '../db/pool.ts';

/** Null until the mark is written. */
export async function findStoreMark(tx: Tx): Promise<string | null> {
  const row = await tx
    .selectFrom('object_stores')
    .select('id')
    .where('marked_at', 'is not', null)
    .executeTakeFirst();
  return row?.id ?? null;
}

export function knownMarks(db: Db) {
  return {
    /** Of several processes that start at once, the first one's id counts. */
    async intend(id: string): Promise<{ readonly id: string; readonly marked: boolean }> {
      const { rows } = await sql<{ id: string; marked: boolean }>`
        insert into object_stores (id) values (${id})
        on conflict (only_one) do update set only_one = true
        returning id, marked_at is not null as marked`.execute(db);
      return rows[0] ?? { id, marked: false };
    },
    async record(id: string): Promise<void> {
      await db.updateTable('object_stores').set({ marked_at: new Date() }).where('id', '=', id).execute();
    },
  };
}

/** The next store that is used gets a new mark. */
export async function deleteStoreMark(tx: Tx): Promise<void> {
  await tx.deleteFrom('object_stores').execute();
}
