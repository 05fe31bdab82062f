/**
 * Keeps objects while a backup, a verification or an export reads them: no task removes any meanwhile.
 *
 * A reader has a row that says until when, and renews it. A task looks for such rows after it has chosen what to remove and
 * before it removes it. So a reader that begins later reads a state in which nobody needs the chosen objects, and never
 * will: released segments get no new holder, deleted instances do not return, and an object without a row for a day gets
 * none. It does not matter how long the removal then takes, or in how many processes it runs; nothing depends on a
 * connection.
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
