import type { DiskReport } from '../../protocol/host-types.ts';
import type { HostId } from '../../shared/ids.ts';
import type { Db } from '../db/pool.ts';
import { placedOn } from '../disks/placement-store.ts';
import { recordDirtyBytes } from '../disks/store.ts';
import { noteRootUse } from './note-root-use.ts';

/** Records a host's report of its disks. Other hosts' disks in it are ignored. */
export async function recordDisks(db: Db, host_id: HostId, disks: readonly DiskReport[]): Promise<void> {
  const ids = disks.map(({ instance_id }) => instance_id);
  // Each disk counts once, because each may cost a transaction.
  const left = new Set(await placedOn(db, host_id, ids));
  const failed: unknown[] = [];
  for (const { instance_id, dirty_bytes, root } of disks) {
    if (!left.delete(instance_id)) continue;
    try {
      await recordDirtyBytes(db, host_id, instance_id, dirty_bytes);
      if (root) await noteRootUse(db, host_id, instance_id, root);
    } catch (error) {
      // A lock timeout on one disk must not stop the others.
      failed.push(error);
    }
  }
  if (failed.length > 0) throw failed[0];
}
