/** What a host is told of a disk: everything while its VM there may write, and nothing once the instance is placed elsewhere. */
import type { DataKeysRequest, DataKeysResponse, HeadResponse } from '../agent-api/types.ts';
import type { Db } from '../db/pool.ts';
import type { HostId, InstanceId } from '../lib/ids.ts';
import { type DiskKeys, neededDataKeys, sentKeys } from './data-keys.ts';
import { findPlacement, mayWrite } from './placement-store.ts';
import { readDisk } from './store.ts';

/** The durable state of a disk, for the host of the instance's newest VM; the keys only while that VM may write. */
export async function readHead(
  db: Db,
  disk_keys: DiskKeys,
  host_id: HostId,
  instance_id: InstanceId,
): Promise<HeadResponse> {
  const placement = await findPlacement(db, instance_id);
  if (!placement) return { outcome: 'gone' };
  if (placement.host_id !== host_id) return { outcome: 'elsewhere' };
  const disk = await readDisk(db, instance_id);
  if (!disk) return { outcome: 'gone' };
  const keys = mayWrite(placement) ? await neededDataKeys(db, disk_keys, instance_id) : null;
  const head = { ...disk, keys: keys ? sentKeys(keys) : [], encryption: disk_keys.encryption };
  return { outcome: 'head', head };
}

/** What the VM's disk is encrypted with from now on. */
export async function readDataKeys(
  db: Db,
  disk_keys: DiskKeys,
  host_id: HostId,
  { instance_id, vm_id, epoch }: DataKeysRequest,
): Promise<DataKeysResponse> {
  const placement = await findPlacement(db, instance_id);
  const is_its_own = placement?.host_id === host_id && placement.vm_id === vm_id;
  if (!is_its_own || placement.disk_epoch !== epoch || !mayWrite(placement)) return { outcome: 'fenced' };
  const keys = await neededDataKeys(db, disk_keys, instance_id);
  if (!keys) return { outcome: 'fenced' };
  return { outcome: 'keys', keys: sentKeys(keys), encryption: disk_keys.encryption };
}
