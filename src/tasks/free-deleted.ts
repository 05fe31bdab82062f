import { notify } from '../db/notify.ts';
import { type Db, transaction } from '../db/pool.ts';
import { diskPrefix } from '../disk-format/disk-prefix.ts';
import { removingObjects } from '../disks/keep-objects.ts';
import { dropHolder, heldByOthers } from '../disks/segment-store.ts';
import { listFreed, removeInstance } from '../instances/store.ts';
import type { Log } from '../lib/log.ts';
import type { ObjectEntry, ObjectStore } from '../object-store/object-store.ts';
import { eachInTurn } from './each-in-turn.ts';

const BATCH = 500;

/**
 * Ends the deletion of instances that no host holds any more: their objects first, then their rows. Segments that
 * another instance holds too stay; its keys, which went when the deletion began, are all that could read the others.
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
      // What another one held just now, and let go since, is for `free-segments`.
      await dropHolder(tx, id, removed);
      await removeInstance(tx, id);
      // Whoever waits for its VM learns at once that it is gone.
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
