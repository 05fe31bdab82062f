import { notify } from '../db/notify.ts';
import { type Db, transaction } from '../db/pool.ts';
import { listFreed, removeInstance } from '../instances/store.ts';
import type { Log } from '../lib/log.ts';
import type { ObjectStore } from '../object-store/object-store.ts';

/** Where all objects of an instance's disk are. */
export function diskPrefix(instance_id: string): string {
  return `disks/${instance_id}`;
}

/** Ends the deletion of instances that no host holds any more: their objects first, then their rows. */
export async function freeDeleted(db: Db, store: ObjectStore, log: Log): Promise<void> {
  for (const { id, name } of await listFreed(db)) {
    let objects = 0;
    for await (const { key } of store.list(`${diskPrefix(id)}/`)) {
      await store.delete(key);
      objects += 1;
    }
    await transaction(db, async (tx) => {
      await removeInstance(tx, id);
      // Whoever waits for its VM learns at once that it is gone.
      await notify(tx, 'instance', id);
    });
    log.info({ instance_id: id, name, objects }, 'instance deleted');
  }
}
