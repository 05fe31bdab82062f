/** What a host knows of a disk that was compacted or checkpointed meanwhile: the real internal API, database and store. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import {
  type CompactOptions,
  checkpointDisk,
  compactDisk,
} from '../../src/control-plane/disks/compact-disk.ts';
import { dropOldGenerations } from '../../src/control-plane/disks/generation-store.ts';
import { sweepOrphans } from '../../src/control-plane/disks/remove-objects.ts';
import { coalesce, readRun } from '../../src/disk-format/read-run.ts';
import type { DiskStateContext } from '../../src/host/disk/disk-state.ts';
import { DiskState } from '../../src/host/disk/disk-state.ts';
import type { FlushRecord } from '../../src/host/vm/record.ts';
import { apiForFile } from '../support/api.ts';
import { freeEverything, ModelDisk, modelForFile } from '../support/model-disks.ts';
import { only } from '../support/only.ts';
import { segmentOf } from '../support/scripted-agent.ts';

const api = await apiForFile();
const { db, agent, context } = api;
const model = await modelForFile(api);
const { owner, store, folder } = model;
const tasks = { db, store, disk_keys: context.disk_keys };
/** Of a host's context what a disk's state needs. */
const host = only<DiskStateContext>({ client: agent.client, store, paths: { overlays: folder } });

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

test('a head replaced by compaction, with deleted objects, is loaded again', async () => {
  const disk = await placed();
  const [state, idle] = [new DiskState(host, disk.id), new DiskState(host, disk.id)];
  await state.load();
  // As of a start from a clean overlay: the head is known, and nothing of it is read until the first flush.
  await idle.refresh();
  assert.equal(await readAll(state), 5);
  await dropOldGenerations(db);
  assert.equal(await compactDisk(tasks, disk.id), true);
  assert.equal(await readAll(state), 5, 'what it reads from is there for an hour');
  await freeEverything(model);
  await assert.rejects(readAll(state), /the object is missing/);
  await idle.load();
  assert.equal(await readAll(idle), 5);
  await state.refresh();
  await state.load();
  assert.equal(await readAll(state), 5);
});

/** The store, which calls `before` once, when a map has been written and is not named yet. */
function atMap(before: () => Promise<void>): CompactOptions['store'] {
  let called = false;
  const put: typeof store.put = async (key, ...rest) => {
    await store.put(key, ...rest);
    if (called || !key.includes('/map/')) return;
    called = true;
    await before();
  };
  return new Proxy(store, { get: (of, name) => (name === 'put' ? put : Reflect.get(of, name).bind(of)) });
}

/** Everything in the store is old: of a clock that jumped, or a task that slept. */
const sweepAll = () => sweepOrphans(db, store, context.log, -60_000);

for (const work of [checkpointDisk, compactDisk]) {
  test(`${work.name} places nothing that the sweep has removed, however long it slept`, async () => {
    const disk = await placed();
    await dropOldGenerations(db);
    const state = new DiskState(host, disk.id);
    const jumped = { ...tasks, store: atMap(sweepAll) };
    assert.equal(await work(jumped, disk.id), true, 'the sweep has left its objects alone');
    await state.load();
    assert.equal(await readAll(state), 5);

    await disk.flush([0, 1], 'noise');
    await dropOldGenerations(db);
    const slept = atMap(async () => {
      await sql`update object_writers set since = now() - interval '2 days'`.execute(db);
      await sweepAll();
    });
    assert.equal(await work({ ...tasks, store: slept }, disk.id), false, 'its objects are gone');
    await state.refresh();
    await state.load();
    assert.equal(await readAll(state), 5);
  });
}

test('a missing object of the current head is named', async () => {
  const disk = await placed();
  const state = new DiskState(host, disk.id);
  const { layers } = await state.refresh();
  const { key } = layers[0] ?? assert.fail();
  await store.delete(key);
  await assert.rejects(state.load(), (error: Error) => error.message.includes(key));
});

describe("a commit of an earlier agent's flush, sent or not,", () => {
  const asFlush = (commit_id: string) => only<FlushRecord>({ generation: 2, commit_id });

  for (const work of [checkpointDisk, compactDisk]) {
    test(`is recognised by its id alone, also after ${work.name}`, async () => {
      const disk = await placed();
      const state = new DiskState(host, disk.id);
      const { commit_id } = await state.refresh();
      await work(tasks, disk.id);
      await state.refresh();
      assert.ok('full' in (state.head.layers.at(-1) ?? {}));
      assert.equal(state.hasCommitted(asFlush(commit_id)), true);
      assert.equal(state.hasCommitted(asFlush(randomUUID())), false);
      const segments = [segmentOf(disk.id, state.head.epoch, 2, '07e407e4')];
      assert.equal((await agent.commit(disk.id, 2, { segments })).outcome, 'fenced');
      assert.equal((await agent.commit(disk.id, 2, { commit_id })).outcome, 'committed', 'said again');
    });
  }
});
