/**
 * Stops the removal of the disks' objects while a backup, a verification or an export reads them.
 *
 * - A reader inserts a row in `object_readers` that expires, and renews it.
 * - A task chooses the objects to remove, then looks for such rows. If there is one, the task removes nothing.
 * - A reader that inserts its row after this look is safe: it reads a database in which nothing needs the chosen
 *   objects. Nothing will need them later: released segments get no new holder, deleted instances do not return, and an
 *   object that had no row for a day gets none.
 *
 * So a removal may take any time, in any number of processes, and nothing depends on a connection.
 */
import { randomUUID } from 'node:crypto';
import { sql } from 'kysely';
import type { Db, Tx } from '../db/pool.ts';

/** After the death of a reader, removals wait for so long. */
const KEPT_SECONDS = 120;
const RENEW_MS = 20_000;

/** Whether anybody reads objects. A task asks after it has chosen what to remove. */
export async function objectsAreKept(db: Db): Promise<boolean> {
  const row = await db
    .selectFrom('object_readers')
    .select('id')
    .where('until', '>', sql<Date>`now()`)
    .limit(1)
    .executeTakeFirst();
  return row !== undefined;
}

/** No object is removed until `release`, or {@link KEPT_SECONDS} after the end of this process. */
export interface KeptObjects {
  /** Throws when the row has expired, or was lost with its server: objects may have been removed since. `tx`: what needs them. */
  check(tx?: Tx): Promise<void>;
  release(): Promise<void>;
}

/** `db` must stay open until `release`. */
export async function keepObjects(db: Db, kept_seconds = KEPT_SECONDS): Promise<KeptObjects> {
  const id = randomUUID();
  const until = sql<Date>`now() + make_interval(secs => ${kept_seconds})`;
  await db.deleteFrom('object_readers').where('until', '<', sql<Date>`now()`).execute();
  await db.insertInto('object_readers').values({ id, until }).execute();
  const renew = async (tx: Tx = db) => {
    const { numUpdatedRows } = await tx
      .updateTable('object_readers')
      .set({ until })
      .where('id', '=', id)
      .where('until', '>', sql<Date>`now()`)
      .executeTakeFirst();
    if (numUpdatedRows !== 1n) throw new Error('objects may have been removed while they were read');
  };
  // A failure is repeated, and `check` tells whether it lasted.
  const renewals = setInterval(() => void renew().catch(() => undefined), RENEW_MS);
  return {
    check: renew,
    release: async () => {
      clearInterval(renewals);
      // The row expires by itself.
      await db
        .deleteFrom('object_readers')
        .where('id', '=', id)
        .execute()
        .catch(() => undefined);
    },
  };
}
