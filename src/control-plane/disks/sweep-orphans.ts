import { diskPrefix } from '../../disk-format/disk-prefix.ts';
import type { ObjectEntry, ObjectStore } from '../../object-store/object-store.ts';
import { storeTime } from '../../object-store/store-clock.ts';
import type { Log } from '../../shared/log.ts';
import type { Db } from '../db/pool.ts';
import { listPresent } from '../instances/store.ts';
import { objectsAreKept } from './keep-objects.ts';
import { knownObjects } from './segment-store.ts';
import { expireWriters } from './writer-store.ts';

/** Orphans are not urgent. What may still be named is protected by rows, whatever its age (`knownObjects`). */
const HORIZON_MS = 24 * 3_600_000;
const BATCH = 500;

/**
 * Removes orphaned objects below the prefixes of disks: those that flushes and tasks left when they were killed. Objects
 * younger than a day stay, and so do, at any age, those that somebody may still name (`knownObjects`). It does not look below
 * other prefixes, which may belong to another installation. Two control planes may do the same at once.
 */
export async function sweepOrphans(
  db: Db,
  store: ObjectStore,
  log: Log,
  horizon_ms = HORIZON_MS,
): Promise<void> {
  // Before the objects are listed: what a writer with a row has written is not removed, and one without a row names nothing.
  await expireWriters(db);
  // The store's clock, for both times: if ours were a day ahead, new objects would seem orphaned.
  const now = await storeTime(store);
  await sweepAll(db, store, log, now.getTime() - horizon_ms);
}

async function sweepAll(db: Db, store: ObjectStore, log: Log, before: number): Promise<void> {
  let swept = 0;
  let batch: ObjectEntry[] = [];
  const sweepBatch = async () => {
    const keys = batch.map(({ key }) => key);
    batch = [];
    if (keys.length === 0) return;
    const known = await knownObjects(db, keys);
    if (await objectsAreKept(db)) return;
    for (const key of keys) {
      if (known.has(key)) continue;
      await store.delete(key);
      swept += 1;
    }
  };
  for (const id of await listPresent(db)) {
    for await (const entry of store.list(`${diskPrefix(id)}/`)) {
      if (entry.modified_at.getTime() > before) continue;
      batch.push(entry);
      if (batch.length === BATCH) await sweepBatch();
    }
    await sweepBatch();
  }
  if (swept > 0) log.info({ objects: swept }, 'objects of no disk removed');
}
