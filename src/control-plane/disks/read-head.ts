/** What a host learns of a disk: everything while its VM may write, nothing once the instance is placed elsewhere. */
import type { DataKeysRequest, DataKeysResponse, HeadResponse } from '../../protocol/types.ts';
import type { HostId, InstanceId } from '../../shared/ids.ts';
import type { Db } from '../db/pool.ts';
import { type DiskKeys, ensureDataKeys, sentKeys } from './data-keys.ts';
import { findPlacement, mayWrite } from './placement-store.ts';
import { isDeleted, readDisk } from './store.ts';

/** The durable state of a disk, for the host of the instance's newest VM; the keys only while that VM may write. */
export async function readHead(
  db: Db,
  disk_keys: DiskKeys,
  host_id: HostId,
  instance_id: InstanceId,
): Promise<HeadResponse> {
  const placement = await findPlacement(db, instance_id);
  if (!placement) return { outcome: (await isDeleted(db, instance_id)) ? 'deleted' : 'unknown' };
  if (placement.host_id !== host_id) return { outcome: 'elsewhere' };
  const disk = await readDisk(db, instance_id);
  if (!disk) return { outcome: 'unknown' };
  const keys = mayWrite(placement) ? await ensureDataKeys(db, disk_keys, instance_id) : null;
  const head = { ...disk, keys: keys ? sentKeys(keys) : [], encryption: disk_keys.encryption };
  return { outcome: 'head', head };
}

/** The keys for the VM's next flush: a fork may have replaced the one for writing. */
export async function readDataKeys(
  db: Db,
  disk_keys: DiskKeys,
  host_id: HostId,
  { instance_id, vm_id, epoch }: DataKeysRequest,
): Promise<DataKeysResponse> {
  const placement = await findPlacement(db, instance_id);
  const is_placed_there = placement?.host_id === host_id && placement.vm_id === vm_id;
  if (!is_placed_there || placement.disk_epoch !== epoch || !mayWrite(placement))
    return { outcome: 'fenced' };
  const keys = await ensureDataKeys(db, disk_keys, instance_id);
  if (!keys) return { outcome: 'fenced' };
  return { outcome: 'keys', keys: sentKeys(keys), encryption: disk_keys.encryption };
}
