/** What a host knows of a disk that was compacted or checkpointed meanwhile: the real internal API, database and store. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { SegmentRef } from '../../src/agent-api/types.ts';
import { coalesce, readRun } from '../../src/disk-format/read-run.ts';
import { dropOldGenerations } from '../../src/disks/generation-store.ts';
import type { HostContext } from '../../src/host/host-context.ts';
import { DiskState } from '../../src/host/runner/disk-state.ts';
import { checkpointDisk } from '../../src/tasks/checkpoint-disks.ts';
import { compactDisk } from '../../src/tasks/compact-disk.ts';
import { apiForFile } from '../support/api.ts';
import { freeEverything, ModelDisk, modelForFile } from '../support/model-disks.ts';

const api = await apiForFile();
const { db, agent, context } = api;
const model = await modelForFile(api);
const { owner, store, folder } = model;
const tasks = { db, store, disk_keys: context.disk_keys };
/** Of a host's context what a disk's state needs. */
const host = { client: agent.client, store, paths: { overlays: folder } } as unknown as HostContext;

/** On the agent's host, with two generations of which one is shown. */
async function placed(): Promise<ModelDisk> {
  const disk = await ModelDisk.make(model, 1);
  await api.as(owner).post(`/v1/instances/${disk.id}/vm`);
  await agent.assigned(disk.id);
  await disk.flush([0, 1, 2, 3, 4], 'noise');
  await disk.flush([1, 2, 3, 4], 'noise');
  return disk;
}

async function readAll(state: DiskState): Promise<number> {
  let blocks = 0;
  for (const run of coalesce(state.map.inSegmentOrder())) {
    await readRun(run, { store, keys: state.keys });
    blocks += run.frames.length;
  }
  return blocks;
}

test('a map from before a compaction is forgotten when the head is asked for again', async () => {
  const disk = await placed();
  const state = new DiskState(host, disk.id);
  await state.load();
  assert.equal(await readAll(state), 5);
  await dropOldGenerations(db);
  assert.equal(await compactDisk(tasks, disk.id), true);
  assert.equal(await readAll(state), 5, 'what it reads from is there for an hour');
  await freeEverything(model);
  await assert.rejects(readAll(state), /the object is missing/);
  await state.refresh();
  await state.load();
  assert.equal(await readAll(state), 5);
});

describe('a flush that an agent has left, its commit said or not', () => {
  const asFlush = (segments: readonly SegmentRef[]) =>
    ({ generation: 2, segments }) as unknown as Parameters<DiskState['hasCommitted']>[1];

  async function committed(): Promise<{ disk: ModelDisk; segments: SegmentRef[]; state: DiskState }> {
    const disk = await placed();
    const { segments } = await db
      .selectFrom('generations')
      .select('segments')
      .where('instance_id', '=', disk.id)
      .where('generation', '=', 2)
      .executeTakeFirstOrThrow();
    const state = new DiskState(host, disk.id);
    await state.refresh();
    return { disk, segments, state };
  }

  test('is known as made by its segments alone', async () => {
    const { segments, state } = await committed();
    assert.equal(state.hasCommitted(1, asFlush(segments)), true);
    assert.equal(state.hasCommitted(2, asFlush(segments)), false);
    assert.equal(state.hasCommitted(1, { ...asFlush(segments), generation: 3 }), false);
    const others = segments.map((segment) => ({ ...segment, key: `${segment.key}0` }));
    assert.equal(state.hasCommitted(1, asFlush(others)), false);
  });

  for (const work of [checkpointDisk, compactDisk]) {
    test(`is not taken for made where ${work.name} came between: the head may be another of that generation`, async () => {
      const { disk, segments, state } = await committed();
      await work(tasks, disk.id);
      await state.refresh();
      assert.ok('full' in (state.head.layers.at(-1) ?? {}));
      const others = segments.map((segment) => ({ ...segment, key: `${segment.key}0` }));
      assert.equal(state.hasCommitted(1, asFlush(others)), false);
      assert.equal((await agent.commit(disk.id, 2, { segments: others })).outcome, 'fenced');
      assert.equal((await agent.commit(disk.id, 2, { segments })).outcome, 'committed', 'said again');
    });
  }
});
