import type { SegmentRef } from '../agent-api/types.ts';
import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';
import { mayWriteWith } from '../disks/data-keys.ts';
import { advanceHead, keysOf, raiseEpoch, totalBytes } from '../disks/store.ts';
import { append } from '../events/append.ts';
import { holdVersion } from '../images/store.ts';
import { present } from '../lib/assert.ts';
import { rfc3339 } from '../lib/clock.ts';
import { AppError } from '../lib/errors.ts';
import { type InstanceId, newId } from '../lib/ids.ts';
import type { QuotaLimits } from '../lib/quotas.ts';
import { checkQuota } from '../orgs/quotas.ts';
import {
  getInstance,
  growDisk,
  type InstanceRow,
  lockInstance,
  setHostKeys,
  updateInstance,
} from './store.ts';
import { instanceView } from './view.ts';

/** A generation whose objects are durable, and the state of the disk that it was made for. */
export interface ImportedDisk {
  readonly id: InstanceId;
  /** The head that it follows, and the disk's epoch then. */
  readonly generation: number;
  readonly epoch: number;
  /** What it is based on. */
  readonly image_version: string;
  readonly segments: readonly SegmentRef[];
  readonly changed_bytes: number;
  /** At least what it has. */
  readonly disk_gib: number;
}

/** While it is stopped. @throws AppError CONFLICT */
export function requireStopped({ name, deleting, state }: InstanceRow): void {
  if (deleting) throw new AppError('CONFLICT', { message: `${name} is being deleted.` });
  const now = state ?? 'stopped';
  if (now === 'stopped') return;
  throw new AppError('CONFLICT', { message: `The VM is ${now}; a disk is imported while it is stopped.` });
}

/** No generation is of an image that other hosts could not fetch. @throws AppError CONFLICT */
export async function requireStoredImage(tx: Tx, image: string, version: string): Promise<void> {
  if (await holdVersion(tx, image, version)) return;
  const message = `The image "${image}" of version ${version.slice(0, 12)} is not in the object store yet; a running Berth puts it there within a minute. Import again then.`;
  throw new AppError('CONFLICT', { message });
}

/**
 * Makes what was imported the head: a generation more, of an epoch of its own, so that no overlay of before is believed.
 * Which host key the guest shows is asked at its next boot. @throws AppError NOT_FOUND, CONFLICT, QUOTA_EXCEEDED
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
    const message = `The disk of ${row.name} has changed meanwhile (a start, a flush or a restore). Import it again.`;
    throw new AppError('CONFLICT', { message });
  }
  if (!(await mayWriteWith(tx, id, keysOf(segments), imported.generation + 1))) {
    const message = `${row.name} was forked meanwhile, and is written with another key from then on. Import it again.`;
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
  const durable_at = await advanceHead(tx, {
    ...{ instance_id: id, vm_id: newId('vm'), epoch, generation, image_version: imported.image_version },
    ...{ segments: [...segments], consistency: 'offline', dirty_bytes: changed_bytes },
  });
  await setHostKeys(tx, id, null);
  const after = present(await getInstance(tx, id), 'instance after an import');
  await append(tx, {
    org_id: row.org_id,
    instance_id: id,
    type: 'disk.flushed',
    data: {
      instance: instanceView(after),
      flush: {
        ...{ generation, durable_at: rfc3339(present(durable_at, 'time of an import')) },
        ...{ dirty_bytes: changed_bytes, uploaded_bytes: totalBytes(segments), segments: segments.length },
        consistency: 'offline',
      },
    },
    actor,
  });
  await notify(tx, 'instance', id);
  return after;
}
