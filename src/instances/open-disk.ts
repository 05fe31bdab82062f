/** All that it takes to read a generation of a disk where the database and the server's key are. */
import type { MapRef, SegmentRef } from '../agent-api/types.ts';
import type { Db } from '../db/pool.ts';
import { type DataKey, KeyRing } from '../disk-format/key-ring.ts';
import { type DiskKeys, openDataKeys } from '../disks/data-keys.ts';
import { findRetained } from '../disks/generation-store.ts';
import { readDisk, readLayers } from '../disks/store.ts';
import { AppError } from '../lib/errors.ts';
import type { InstanceId } from '../lib/ids.ts';
import { getInstance, type InstanceRow } from './store.ts';

export interface OpenedDisk {
  readonly instance: InstanceRow;
  readonly generation: number;
  /** Null: there is no generation yet, and any image will do. */
  readonly image_version: string | null;
  readonly layers: readonly (SegmentRef | MapRef)[];
  readonly keys: KeyRing;
  /** What new objects of it are encrypted with. */
  readonly own: DataKey;
}

/**
 * A generation that is shown, the head without one. Objects must be kept (`keepObjects`) from before this on for as long
 * as they are read. @throws AppError NOT_FOUND, CONFLICT
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
      message: `${instance.name} has no generation ${generation} (any more).`,
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
