/**
 * Answers a host that asks for the durable state or the data keys of a disk, and checks which objects its commits name.
 * A host gets the state while the instance's newest VM is on this host, and the keys only while that VM may write.
 */
import type { CommitRequest, DataKeysRequest, DataKeysResponse, HeadResponse } from '../../protocol/types.ts';
import { invalid } from '../../shared/errors.ts';
import type { HostId, InstanceId } from '../../shared/ids.ts';
import type { Db } from '../db/pool.ts';
import { type DiskKeys, ensureDataKeys, sentKeys } from './data-keys.ts';
import { findPlacement, isDeleted, mayWrite, readDisk } from './store.ts';

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

const BLOCK_BYTES = 65_536;
/** A flush resends a block that the guest overwrote meanwhile, but never this often. */
const TIMES_A_BLOCK = 4;

/** A commit may name only objects that its host wrote for this disk, epoch and generation. @throws AppError INVALID_REQUEST */
export function checkCommit(
  { instance_id, epoch, generation, segments }: CommitRequest,
  disk_bytes: number,
): void {
  const prefix = `disks/${instance_id}/seg/${epoch}/${generation}-`;
  const keys = new Set<string>();
  let blocks = 0;
  for (const [i, { key, entries }] of segments.entries()) {
    if (!key.startsWith(prefix)) {
      throw invalid(`segments.${i}.key`, 'is not an object of this disk, epoch and generation');
    }
    if (keys.has(key)) throw invalid(`segments.${i}.key`, 'is listed twice');
    keys.add(key);
    blocks += entries;
  }
  if (blocks > TIMES_A_BLOCK * Math.ceil(disk_bytes / BLOCK_BYTES)) {
    throw invalid('segments', 'hold more blocks than the disk has');
  }
}
