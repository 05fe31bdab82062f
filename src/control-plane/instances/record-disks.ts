/**
 * Records what a host reports of its disks: how many bytes are not saved yet, and how full the guest's root file system
 * is. Appends the event `disk.nearly_full` when that file system passes 90 %.
 */
import type { DiskReport, FileSystemUse } from '../../protocol/host-types.ts';
import type { HostId, InstanceId } from '../../shared/ids.ts';
import { type Db, transaction } from '../db/pool.ts';
import { markNearlyFull, placedOn, recordDirtyBytes } from '../disks/store.ts';
import { appendPrivate } from '../events/append.ts';
import { instanceView } from './model.ts';
import { getInstance } from './store.ts';

const FULL_ABOVE = 0.9;
const ROOM_BELOW = 0.85;

/** Appends `disk.nearly_full` when a guest's root file system passes 90 %, and again only after it was below 85 %. */
async function noteRootUse(
  db: Db,
  host_id: HostId,
  instance_id: InstanceId,
  { used_bytes, total_bytes }: FileSystemUse,
): Promise<void> {
  const used = used_bytes / total_bytes;
  // The guest reports it, so it may be nonsense.
  if (!Number.isFinite(used) || (used >= ROOM_BELOW && used <= FULL_ABOVE)) return;
  const nearly_full = used > FULL_ABOVE;
  await transaction(db, async (tx) => {
    if (!(await markNearlyFull(tx, host_id, instance_id, nearly_full)) || !nearly_full) return;
    const row = await getInstance(tx, instance_id);
    if (!row || row.deleting) return;
    await appendPrivate(tx, {
      type: 'disk.nearly_full',
      org_id: row.org_id,
      user_id: null,
      instance_id,
      data: { instance: instanceView(row), filesystem: { used_bytes, total_bytes } },
      actor: host_id,
    });
  });
}

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
