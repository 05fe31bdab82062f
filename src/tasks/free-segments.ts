import type { Db } from '../db/pool.ts';
import { objectsAreKept } from '../disks/keep-objects.ts';
import { listUnheld, removeUnheld } from '../disks/segment-store.ts';
import type { Log } from '../lib/log.ts';
import type { ObjectStore } from '../object-store/object-store.ts';

/** Long enough for a host that still reads by an older head to ask for the new one. */
const HORIZON_MS = 3_600_000;
const BATCH = 500;

/**
 * Removes segments that no instance has held for an hour: what compaction replaced, what a deleted fork shared. Two control
 * planes may do the same at once.
 */
export async function freeSegments(
  db: Db,
  store: ObjectStore,
  log: Log,
  horizon_ms = HORIZON_MS,
): Promise<void> {
  let freed = 0;
  for (;;) {
    const keys = await listUnheld(db, horizon_ms, BATCH);
    if (await objectsAreKept(db)) break;
    let now = 0;
    for (const key of keys) if (await removeUnheld(db, key, () => store.delete(key))) now += 1;
    freed += now;
    // None of a batch: others are at it, or it has holders again.
    if (keys.length < BATCH || now === 0) break;
  }
  if (freed > 0) log.info({ segments: freed }, 'segments without a holder removed');
}
