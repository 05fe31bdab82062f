/**
 * Removes objects that nothing needs from the object store. Objects that somebody is still writing stay. The tasks:
 *
 * - `free-deleted`: the objects and rows of deleted instances
 * - `free-memory`: saved memory that no VM will resume from
 * - `free-segments`: segments and maps that no instance has held for a while
 * - `sweep-orphans`: objects of disks that no row names, when they are a day old
 */

import { consumedKey } from '../../disk-format/memory-format.ts';
import { diskPrefix } from '../../disk-format/segment-format.ts';
import type { ObjectEntry, ObjectStore } from '../../object-store/object-store.ts';
import { storeTime } from '../../object-store/store-mark.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { notify } from '../db/notify.ts';
import { type Db, transaction } from '../db/pool.ts';
import { listFreed, listPresent, lockInstance, removeInstance } from '../instances/store.ts';
import { eachInTurn } from '../tasks/run-tasks.ts';
import { countLastStored } from '../usage/store.ts';
import { deleteMemory, listOrphanedMemory } from '../vms/memory-store.ts';
import { deleteSamples } from '../vms/metric-store.ts';
import { objectsAreKept } from './keep-objects.ts';
import {
  dropHolder,
  expireWriters,
  heldByOthers,
  knownObjects,
  listUnheld,
  removeUnheld,
} from './segment-store.ts';

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

/**
 * Completes the deletion of instances that no host holds: first the objects, then the rows. Segments that another
 * instance also holds stay. The instance's own keys were deleted when the deletion began, so the rest cannot be read.
 * Two control planes may do the same at once.
 */
export async function freeDeleted(db: Db, store: ObjectStore, log: Log): Promise<void> {
  await eachInTurn(await listFreed(db), async ({ id, name }) => {
    const prefix = `${diskPrefix(id)}/`;
    const removed: string[] = [];
    for await (const keys of batches(store.list(prefix))) {
      const held = await heldByOthers(db, id, keys);
      if (await objectsAreKept(db)) return;
      for (const key of keys) {
        if (held.has(key)) continue;
        await store.delete(key);
        removed.push(key);
      }
    }
    if (await removeRows(db, id, removed))
      log.info({ instance_id: id, name, objects: removed.length }, 'instance deleted');
  });
}

/** False when another control plane has done it. */
async function removeRows(db: Db, id: InstanceId, removed: readonly string[]): Promise<boolean> {
  return transaction(db, async (tx) => {
    if (!(await lockInstance(tx, id))) return false;
    // `free-segments` deletes the segments that another instance has released since.
    await dropHolder(tx, id, removed);
    await deleteSamples(tx, id);
    await countLastStored(tx, id);
    await removeInstance(tx, id);
    // Wakes the requests that wait for its VM.
    await notify(tx, 'instance', id);
    return true;
  });
}

async function* batches(entries: AsyncIterable<ObjectEntry>): AsyncGenerator<string[]> {
  let keys: string[] = [];
  for await (const { key } of entries) {
    keys.push(key);
    if (keys.length < BATCH) continue;
    yield keys;
    keys = [];
  }
  if (keys.length > 0) yield keys;
}

const MEMORY_BATCH = 100;

/**
 * Removes the memory of VMs that have gone on, or never will. Objects first: killed anywhere, the row is there for the next
 * time. Of the objects the parts first, and then what says who consumed the memory: a database that was set back cannot run memory
 * that is incomplete. What a suspend has left that came to nothing has no row; the sweep finds it.
 */
export async function freeMemory(db: Db, store: ObjectStore, log: Log): Promise<void> {
  for (;;) {
    const keys = await listOrphanedMemory(db, MEMORY_BATCH);
    await eachInTurn(keys, async (key) => {
      for await (const entry of store.list(`${key}/`))
        if (entry.key !== consumedKey(key)) await store.delete(entry.key);
      await store.delete(consumedKey(key));
      await deleteMemory(db, key);
    });
    if (keys.length > 0) log.info({ memories: keys.length }, 'unused memory of suspended VMs removed');
    if (keys.length < MEMORY_BATCH) return;
  }
}

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
