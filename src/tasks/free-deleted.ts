import { notify } from '../db/notify.ts';
import { type Db, transaction } from '../db/pool.ts';
import { diskPrefix } from '../disk-format/disk-prefix.ts';
import { removingObjects } from '../disks/keep-objects.ts';
import { dropHolder, heldByOthers } from '../disks/segment-store.ts';
import { listFreed, removeInstance } from '../instances/store.ts';
import type { Log } from '../lib/log.ts';
import type { ObjectEntry, ObjectStore } from '../object-store/object-store.ts';
import { countLastStored } from '../usage/count-store.ts';
import { deleteSamples } from '../vms/metric-store.ts';
import { eachInTurn } from './each-in-turn.ts';

const BATCH = 500;

/**
 * Completes the deletion of instances that no host holds: first the objects, then the rows. Segments that another
 * instance also holds stay. The instance's own keys were deleted when the deletion began, so the rest cannot be read.
 */
export async function freeDeleted(db: Db, store: ObjectStore, log: Log): Promise<void> {
  await removingObjects(db, 'free-deleted', () => freeEach(db, store, log));
}

async function freeEach(db: Db, store: ObjectStore, log: Log): Promise<void> {
  await eachInTurn(await listFreed(db), async ({ id, name }) => {
    const prefix = `${diskPrefix(id)}/`;
    const removed: string[] = [];
    for await (const keys of batches(store.list(prefix))) {
      const held = await heldByOthers(db, id, keys);
      for (const key of keys) {
        if (held.has(key)) continue;
        await store.delete(key);
        removed.push(key);
      }
    }
    await transaction(db, async (tx) => {
      // `free-segments` deletes the segments that another instance has released since.
      await dropHolder(tx, id, removed);
      await deleteSamples(tx, id);
      await countLastStored(tx, id);
      await removeInstance(tx, id);
      // Wakes the requests that wait for its VM.
      await notify(tx, 'instance', id);
    });
    log.info({ instance_id: id, name, objects: removed.length }, 'instance deleted');
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
