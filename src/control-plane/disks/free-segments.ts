import type { ObjectStore } from '../../object-store/object-store.ts';
import type { Log } from '../../shared/log.ts';
import type { Db } from '../db/pool.ts';
import { objectsAreKept } from './keep-objects.ts';
import { listUnheld, removeUnheld } from './segment-store.ts';

const BATCH = 500;

/**
 * Removes segments that no instance has held for `delay_ms`: what compaction replaced, what a deleted fork shared. Until then
 * a host reads by an older head, and a database that is set back in time finds them. Two control planes may do the same at
 * once. Returns how many were removed.
 */
export async function freeSegments(db: Db, store: ObjectStore, log: Log, delay_ms: number): Promise<number> {
  let freed = 0;
  for (;;) {
    const keys = await listUnheld(db, delay_ms, BATCH);
    if (await objectsAreKept(db)) break;
    let now = 0;
    for (const key of keys) if (await removeUnheld(db, key, () => store.delete(key))) now += 1;
    freed += now;
    // None of a batch: others are at it, or it has holders again.
    if (keys.length < BATCH || now === 0) break;
  }
  if (freed > 0) log.info({ segments: freed }, 'segments without a holder removed');
  return freed;
}
