import type { FileSystemUse } from '../../protocol/host-types.ts';
import type { HostId, InstanceId } from '../../shared/ids.ts';
import { type Db, transaction } from '../db/pool.ts';
import { markNearlyFull } from '../disks/store.ts';
import { appendPrivate } from '../events/append.ts';
import { getInstance } from './store.ts';
import { instanceView } from './view.ts';

const FULL_ABOVE = 0.9;
const ROOM_BELOW = 0.85;

/** Appends `disk.nearly_full` when a guest's root file system passes 90 %, and again only after it was below 85 %. */
export async function noteRootUse(
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
