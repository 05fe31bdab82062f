/** The row that says which mark this installation's object store has (object-store/claim-store.ts). */
import { sql } from 'kysely';
import type { Db, Tx } from '../db/pool.ts';

/** What the mark says, once it was written; null before. */
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
    /** Of several processes that begin at once, the first names it. */
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

/** The next store that is used is claimed under a new name. */
export async function forgetStoreMark(tx: Tx): Promise<void> {
  await tx.deleteFrom('object_stores').execute();
}
