import { diskPrefix } from '../../disk-format/disk-prefix.ts';
import type { ObjectEntry, ObjectStore } from '../../object-store/object-store.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { notify } from '../db/notify.ts';
import { type Db, transaction } from '../db/pool.ts';
import { listFreed, lockInstance, removeInstance } from '../instances/store.ts';
import { eachInTurn } from '../tasks/each-in-turn.ts';
import { countLastStored } from '../usage/count-store.ts';
import { deleteSamples } from '../vms/metric-store.ts';
import { objectsAreKept } from './keep-objects.ts';
import { dropHolder, heldByOthers } from './segment-store.ts';

const BATCH = 500;

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
