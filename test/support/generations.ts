/** Inserts generations as database rows without objects, for tests of decisions that need only the database. */
import { type Db, transaction } from '../../src/control-plane/db/pool.ts';
import { advanceHead, readLayers } from '../../src/control-plane/disks/store.ts';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import type { InstanceOut, TestApi } from './api.ts';
import type { Person } from './people.ts';

/** Commits `count` more generations. Each has one segment, which exists in no store. */
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

/** Instances of `owner` with generations, and facts about them that the API does not return. */
export function generationScene(api: TestApi, owner: Person) {
  const { db } = api;
  return {
    path: (id: string, rest: string) => `/v1/instances/${id}/${rest}`,
    withGenerations: async (count: number, change: Record<string, unknown> = {}): Promise<InstanceOut> => {
      const instance = await api.instance(owner, change);
      await makeGenerations(db, instance.id, count);
      return instance;
    },
    read: async (id: string) => (await api.as(owner).get<InstanceOut>(`/v1/instances/${id}`)).body,
    /** Keys of the objects that make a generation, oldest first. */
    layers: async (id: InstanceId, generation: number) =>
      (await readLayers(db, id, generation)).map(({ key }) => key),
    events: (instance_id: InstanceId) =>
      db
        .selectFrom('events')
        .select(['type', 'data', 'actor'])
        .where('instance_id', '=', instance_id)
        .orderBy('sequence')
        .execute(),
    /** The actions on `target` in the audit log. */
    audited: async (target: string) => {
      const entries = db.selectFrom('audit_log').select('action').where('target', '=', target);
      return (await entries.execute()).map(({ action }) => action);
    },
  };
}
