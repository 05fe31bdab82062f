/** What a command on the server needs to read a generation of a disk. */
import { type DataKey, KeyRing } from '../../disk-format/key-ring.ts';
import type { MapRef, SegmentRef } from '../../protocol/types.ts';
import { AppError } from '../../shared/errors.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Db } from '../db/pool.ts';
import { type DiskKeys, openDataKeys } from '../disks/data-keys.ts';
import { findRetained } from '../disks/generation-store.ts';
import { readDisk, readLayers } from '../disks/store.ts';
import { getInstance, type InstanceRow } from './store.ts';

export interface OpenedDisk {
  readonly instance: InstanceRow;
  readonly generation: number;
  /** Null: there is no generation yet, so the disk is based on no version. */
  readonly image_version: string | null;
  readonly layers: readonly (SegmentRef | MapRef)[];
  readonly keys: KeyRing;
  /** Encrypts new objects. */
  readonly own: DataKey;
}

/**
 * Opens a retained generation, or the head. The caller must keep objects (`keepObjects`) from before this call until it has
 * read them. @throws AppError NOT_FOUND, CONFLICT
 */
export async function openDisk(
  db: Db,
  disk_keys: DiskKeys,
  id: InstanceId,
  generation: number | null,
): Promise<OpenedDisk> {
  const instance = await getInstance(db, id);
  const disk = await readDisk(db, id);
  if (!instance || !disk) throw new AppError('NOT_FOUND');
  const opened = await openDataKeys(db, disk_keys, id);
  if (instance.deleting || !opened) {
    throw new AppError('CONFLICT', { message: `${instance.name} is being deleted.` });
  }
  const head = generation === null || generation === disk.generation;
  if (!head && !(await findRetained(db, id, generation))) {
    throw new AppError('NOT_FOUND', {
      message: `${instance.name} has no generation ${generation}: it never existed, or was dropped.`,
    });
  }
  return {
    instance,
    generation: head ? disk.generation : generation,
    image_version: disk.image_version,
    layers: head ? disk.layers : await readLayers(db, id, generation),
    keys: new KeyRing(opened.keys),
    own: opened.own,
  };
}
