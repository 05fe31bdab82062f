import { consumedKey } from '../../disk-format/memory-format.ts';
import type { ObjectStore } from '../../object-store/object-store.ts';
import type { Log } from '../../shared/log.ts';
import type { Db } from '../db/pool.ts';
import { eachInTurn } from '../tasks/each-in-turn.ts';
import { deleteMemory, listOrphanedMemory } from '../vms/memory-store.ts';

const BATCH = 100;

/**
 * Removes the memory of VMs that have gone on, or never will. Objects first: killed anywhere, the row is there for the next
 * time. Of the objects the parts first, and then what says who consumed the memory: a database that was set back cannot run memory
 * that is incomplete. What a suspend has left that came to nothing has no row; the sweep finds it.
 */
export async function freeMemory(db: Db, store: ObjectStore, log: Log): Promise<void> {
  for (;;) {
    const keys = await listOrphanedMemory(db, BATCH);
    await eachInTurn(keys, async (key) => {
      for await (const entry of store.list(`${key}/`))
        if (entry.key !== consumedKey(key)) await store.delete(entry.key);
      await store.delete(consumedKey(key));
      await deleteMemory(db, key);
    });
    if (keys.length > 0) log.info({ memories: keys.length }, 'unused memory of suspended VMs removed');
    if (keys.length < BATCH) return;
  }
}
