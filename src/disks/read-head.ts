import type { DiskHead } from '../agent-api/types.ts';
import type { Db } from '../db/pool.ts';
import type { HostId, InstanceId } from '../lib/ids.ts';
import { type DiskKeys, neededDataKeys, sentKeys } from './data-keys.ts';
import { hostHasVm, readDisk } from './store.ts';

/** The durable state of a disk as a host is told it; the keys go to the host that has the VM alone. */
export async function readHead(
  db: Db,
  disk_keys: DiskKeys,
  host_id: HostId,
  instance_id: InstanceId,
): Promise<DiskHead | null> {
  const disk = await readDisk(db, instance_id);
  if (!disk) return null;
  const keys = (await hostHasVm(db, host_id, instance_id))
    ? await neededDataKeys(db, disk_keys, instance_id)
    : null;
  return {
    ...disk,
    keys: keys ? sentKeys(keys) : [],
    encryption: disk_keys.encryption,
  };
}
