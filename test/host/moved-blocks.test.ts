/** A guest's read of a block that compaction has moved, without and with a flush that commits meanwhile. */
import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { compactDisk } from '../../src/control-plane/disks/compact-disk.ts';
import { dropOldGenerations } from '../../src/control-plane/disks/generation-store.ts';
import type { DiskStateContext } from '../../src/host/disk/disk-state.ts';
import { DiskState } from '../../src/host/disk/disk-state.ts';
import { FlushSink } from '../../src/host/disk/flush-sink.ts';
import { LazyDisk } from '../../src/host/disk/lazy-disk.ts';
import { RunCache } from '../../src/host/disk/run-cache.ts';
import type { ObjectStore } from '../../src/object-store/object-store.ts';
import { apiForFile } from '../support/api.ts';
import { freeEverything, ModelDisk, modelForFile } from '../support/model-disks.ts';
import { only } from '../support/only.ts';

const api = await apiForFile();
const { db, agent, context } = api;
const model = await modelForFile(api);
const { owner, store, folder, pool } = model;
const tasks = { db, store, disk_keys: context.disk_keys };
/** Runs once, at the next read of a map object. */
let atMap: (() => Promise<void>) | null = null;
const watched: ObjectStore = Object.assign(Object.create(store), {
  get: async (key: string, ...rest: []) => {
    const body = await store.get(key, ...rest);
    if (key.includes('/map/') && atMap) {
      const now = atMap;
      atMap = null;
      await now();
    }
    return body;
  },
  put: store.put.bind(store),
});
const host = only<DiskStateContext>({
  ...{ client: agent.client, store: watched, paths: { overlays: folder } },
  images: { stored: async () => undefined },
});

for (const race of [false, true]) {
  test(`a read of a block that compaction moved succeeds${race ? ', while a flush commits' : ''}`, async () => {
    const disk = await ModelDisk.make(model, 1);
    await api.as(owner).post(`/v1/instances/${disk.id}/vm`);
    const { vm_id, epoch } = await agent.assigned(disk.id);
    await disk.flush([0, 1, 2, 3, 4], 'noise');
    await disk.flush([1, 2, 3, 4], 'noise');
    const state = new DiskState(host, disk.id);
    await state.load();
    const base = await open(join(folder, `base-${race}`), 'w+');
    const lazy = new LazyDisk({
      ...{ size_bytes: 2 ** 20, base, runs: new RunCache({ store: watched, pool }) },
      ...{ map: (anew: boolean) => state.mapForReads(anew), keys: () => state.keys },
    });
    await dropOldGenerations(db);
    assert.equal(await compactDisk(tasks, disk.id), true);
    // An hour later; at once, for a host without credentials.
    await freeEverything(model);
    const commit = async () => {
      const about = { disk_id: disk.id, epoch, generation: 3, key_prefix: `disks/${disk.id}` };
      const sink = new FlushSink({
        store,
        pool,
        ...about,
        size_bytes: 2 ** 30,
        head: state.map,
        data_key: state.write_key,
      });
      await sink.write(7 * 65_536, randomBytes(65_536));
      const { segments, dirty_bytes } = await sink.finish();
      const record = { vm_id, epoch, image: 'debian-12', image_version: 'a'.repeat(64) };
      const flush = {
        generation: 3,
        commit_id: randomUUID(),
        segments,
        dirty_bytes,
        consistency: 'crash',
      } as const;
      await state.commit(agent.client, record, flush, new AbortController().signal);
    };
    if (race) atMap = commit;
    const read = await lazy.read(0, 65_536).then(
      (bytes) => bytes.equals(disk.content.subarray(0, 65_536)),
      (error: Error) => error,
    );
    await base.close();
    assert.equal(read, true);
  });
}
