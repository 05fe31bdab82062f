/**
 * Does the database's part of the operator's commands that read or import a disk, which run on the server
 * (cli/server/). The commands themselves read and write the disk's objects in the store.
 *
 * - `openDisk`: finds what is needed to read a generation: its layers (the segments and maps that its blocks are in)
 *   and the data keys.
 * - `importDisk`: makes an imported generation the head, after the command has stored its segments. It refuses if the
 *   VM is not stopped, or if the disk has changed since the import began. It raises the epoch, so that no host
 *   continues from an older overlay.
 */
import { type DataKey, KeyRing } from '../../disk-format/frame-cipher.ts';
import type { MapRef, SegmentRef } from '../../protocol/types.ts';
import { present } from '../../shared/assert.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import { notify } from '../db/notify.ts';
import type { Db, Tx } from '../db/pool.ts';
import { type DiskKeys, mayWriteWith, openDataKeys } from '../disks/data-keys.ts';
import { findRetained } from '../disks/generation-store.ts';
import { endWriting, type WriterId } from '../disks/segment-store.ts';
import { advanceHead, keysOf, raiseEpoch, readDisk, readLayers, totalBytes } from '../disks/store.ts';
import { append } from '../events/append.ts';
import { holdVersion } from '../images/store.ts';
import { checkQuota } from '../organisations/quotas.ts';
import { instanceView } from './model.ts';
import {
  getInstance,
  growDisk,
  type InstanceRow,
  lockInstance,
  setHostKeys,
  updateInstance,
} from './store.ts';

/** A generation whose objects are durable, and the state of the disk that it was built on. */
export interface ImportedDisk {
  readonly id: InstanceId;
  /** The head that it follows, and the disk's epoch at that time. */
  readonly generation: number;
  readonly epoch: number;
  readonly image_version: string;
  readonly segments: readonly SegmentRef[];
  /** Of the segments. */
  readonly writer: WriterId;
  readonly changed_bytes: number;
  /** At least the disk's present size. */
  readonly disk_gib: number;
}

/** @throws AppError CONFLICT */
export function requireStopped({ name, deleting, state }: InstanceRow): void {
  if (deleting) throw new AppError('CONFLICT', { message: `${name} is being deleted.` });
  const now = state ?? 'stopped';
  if (now === 'stopped') return;
  throw new AppError('CONFLICT', { message: `The VM is ${now}. Stop it before you import a disk.` });
}

/** Other hosts must be able to fetch the image that a generation is based on. @throws AppError CONFLICT */
export async function requireStoredImage(tx: Tx, image: string, version: string): Promise<void> {
  if (await holdVersion(tx, image, version)) return;
  const message = `Version ${version.slice(0, 12)} of the image "${image}" is not in the object store yet. A running Berth puts it there within a minute; import again then.`;
  throw new AppError('CONFLICT', { message });
}

/**
 * Makes the imported generation the head, in a new epoch, so that no earlier overlay is used. The next boot reports the
 * guest's host key. @throws AppError NOT_FOUND, CONFLICT, QUOTA_EXCEEDED
 */
export async function importDisk(
  tx: Tx,
  quotas: QuotaLimits,
  imported: ImportedDisk,
  actor: string,
): Promise<InstanceRow> {
  const { id, segments, changed_bytes, disk_gib } = imported;
  await lockInstance(tx, id);
  const row = await getInstance(tx, id);
  if (!row) throw new AppError('NOT_FOUND');
  requireStopped(row);
  if (row.generation !== imported.generation || row.disk_epoch !== imported.epoch) {
    const message = `The disk of ${row.name} changed meanwhile (a start, a flush or a restore). Import again.`;
    throw new AppError('CONFLICT', { message });
  }
  if (!(await mayWriteWith(tx, id, keysOf(segments), imported.generation + 1))) {
    const message = `${row.name} was forked meanwhile, and so has a new data key. Import again.`;
    throw new AppError('CONFLICT', { message });
  }
  if (!(await endWriting(tx, imported.writer))) {
    const message = 'The import took longer than a day, and what it had stored may be gone. Import again.';
    throw new AppError('CONFLICT', { message });
  }
  await requireStoredImage(tx, row.image, imported.image_version);
  if (disk_gib > row.disk_gib) {
    await checkQuota(tx, quotas, row.org_id, { disk_gib: disk_gib - row.disk_gib });
    await updateInstance(tx, id, { disk_gib });
    await growDisk(tx, id, disk_gib);
  }
  const epoch = await raiseEpoch(tx, id);
  const generation = imported.generation + 1;
  const made = {
    instance_id: id,
    epoch,
    generation,
    image_version: imported.image_version,
    segments: [...segments],
    consistency: 'offline',
    dirty_bytes: changed_bytes,
  } as const;
  const durable_at = await advanceHead(tx, made, null, 'import');
  await setHostKeys(tx, id, null);
  const after = present(await getInstance(tx, id), 'instance after an import');
  await append(tx, {
    org_id: row.org_id,
    instance_id: id,
    type: 'disk.flushed',
    data: {
      instance: instanceView(after),
      flush: {
        generation,
        durable_at: rfc3339(present(durable_at, 'time of an import')),
        dirty_bytes: changed_bytes,
        uploaded_bytes: totalBytes(segments),
        segments: segments.length,
        consistency: 'offline',
        trigger: 'import',
      },
    },
    actor,
  });
  await notify(tx, 'instance', id);
  return after;
}

/** What a command on the server needs to read a generation of a disk. */
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
