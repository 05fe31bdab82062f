/** Generations of disks as rows, without any object: for what only the database decides. */
import { type Db, transaction } from '../../src/db/pool.ts';
import { advanceHead } from '../../src/disks/store.ts';
import { type InstanceId, newId } from '../../src/lib/ids.ts';

/** Commits so many more generations, of one segment each that is in no store. */
export async function makeGenerations(db: Db, instance_id: InstanceId, count: number): Promise<void> {
  for (let i = 0; i < count; i++) {
    await transaction(db, async (tx) => {
      const disk = await tx
        .selectFrom('disks')
        .select(['epoch', 'generation'])
        .where('instance_id', '=', instance_id)
        .executeTakeFirstOrThrow();
      const generation = disk.generation + 1;
      const key = `disks/${instance_id}/seg/${disk.epoch}/${generation}-00000000-0`;
      await advanceHead(tx, {
        ...{ instance_id, vm_id: newId('vm'), epoch: disk.epoch, generation, image_version: 'a'.repeat(64) },
        segments: [{ key, size_bytes: 1000 * generation, entries: 1, key_id: null }],
        consistency: 'filesystem',
        dirty_bytes: 65_536,
      });
    });
  }
}
