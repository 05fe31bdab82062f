import { sql } from 'kysely';
import type { CommitRequest, DiskHead, SegmentRef } from '../agent-api/types.ts';
import type { Tx } from '../db/pool.ts';
import { present } from '../lib/assert.ts';
import { rfc3339 } from '../lib/clock.ts';
import type { HostId, InstanceId } from '../lib/ids.ts';

/** The durable state of a disk with the segments of all its generations, oldest first. */
export async function readHead(tx: Tx, instance_id: InstanceId): Promise<DiskHead | null> {
  const disk = await tx
    .selectFrom('disks')
    .selectAll()
    .where('instance_id', '=', instance_id)
    .executeTakeFirst();
  if (!disk) return null;
  const generations = await tx
    .selectFrom('generations')
    .select('segments')
    .where('instance_id', '=', instance_id)
    .where('generation', '<=', disk.generation)
    .orderBy('generation')
    .execute();
  return {
    instance_id,
    size_bytes: disk.size_bytes,
    image_version: disk.image_version,
    generation: disk.generation,
    head_epoch: disk.head_epoch,
    epoch: disk.epoch,
    durable_at: disk.durable_at === null ? null : rfc3339(disk.durable_at),
    segments: generations.flatMap((row) => row.segments),
  };
}

/**
 * The compare-and-swap of a commit: the head moves from generation n-1 to n if the disk's newest placement is
 * still `epoch`. Returns the time of it, or null when the disk has moved on.
 */
export async function advanceHead(tx: Tx, commit: CommitRequest): Promise<Date | null> {
  const bytes = totalBytes(commit.segments);
  const row = await tx
    .updateTable('disks')
    .set({
      generation: commit.generation,
      head_epoch: commit.epoch,
      image_version: commit.image_version,
      durable_at: sql`date_trunc('milliseconds', clock_timestamp())`,
      stored_bytes: sql`stored_bytes + ${bytes}`,
      dirty_bytes: 0,
    })
    .where('instance_id', '=', commit.instance_id)
    .where('epoch', '=', commit.epoch)
    .where('generation', '=', commit.generation - 1)
    .returning('durable_at')
    .executeTakeFirst();
  if (!row) return null;
  const durable_at = present(row.durable_at, 'time of a commit');
  await tx
    .insertInto('generations')
    .values({
      instance_id: commit.instance_id,
      generation: commit.generation,
      epoch: commit.epoch,
      created_at: durable_at,
      bytes,
      consistency: commit.consistency,
      segments: JSON.stringify(commit.segments),
    })
    .execute();
  return durable_at;
}

export function totalBytes(segments: readonly SegmentRef[]): number {
  return segments.reduce((sum, segment) => sum + segment.size_bytes, 0);
}

export async function findGeneration(tx: Tx, instance_id: InstanceId, generation: number) {
  return tx
    .selectFrom('generations')
    .selectAll()
    .where('instance_id', '=', instance_id)
    .where('generation', '=', generation)
    .executeTakeFirst();
}

/** Whether that was not so before. Only from the host of the disk's newest VM. */
export async function markNearlyFull(
  tx: Tx,
  host_id: HostId,
  instance_id: InstanceId,
  nearly_full: boolean,
): Promise<boolean> {
  const changed = await tx
    .updateTable('disks')
    .set({ nearly_full })
    .where('instance_id', '=', instance_id)
    .where('nearly_full', '!=', nearly_full)
    .where((eb) =>
      eb.exists(
        eb
          .selectFrom('vms')
          .select('vms.id')
          .whereRef('vms.instance_id', '=', 'disks.instance_id')
          .whereRef('vms.epoch', '=', 'disks.epoch')
          .where('vms.host_id', '=', host_id),
      ),
    )
    .executeTakeFirst();
  return changed.numUpdatedRows > 0n;
}

/** What the host last counted as dirty, for disks of VMs that it runs. */
export async function recordDirtyBytes(
  tx: Tx,
  host_id: HostId,
  instance_id: InstanceId,
  dirty_bytes: number,
): Promise<void> {
  await tx
    .updateTable('disks')
    .set({ dirty_bytes })
    .where('instance_id', '=', instance_id)
    .where('dirty_bytes', '!=', dirty_bytes)
    .where((eb) =>
      eb.exists(
        eb
          .selectFrom('vms')
          .select('vms.id')
          .whereRef('vms.instance_id', '=', 'disks.instance_id')
          .where('vms.host_id', '=', host_id),
      ),
    )
    .execute();
}

/** The disk that has run an instance's script for the first boot is durable now: it is not needed any more. */
export async function eraseGivenUserData(tx: Tx, instance_id: InstanceId): Promise<void> {
  await tx.deleteFrom('user_data').where('instance_id', '=', instance_id).where('given', '=', true).execute();
}
