/**
 * Chains of generations against a model in memory: flushes, restores, forks, pins, retention, checkpoints, compaction that is
 * killed at any step, deletions of parents and forks. After everything each generation that is shown reads as it was flushed.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { sql } from 'kysely';
import {
  type CompactOptions,
  checkpointDisk,
  checkpointDisks,
  compactDisk,
  compactDisks,
} from '../../src/control-plane/disks/compact-disk.ts';
import { listLongChains, listWasteful } from '../../src/control-plane/disks/compaction-store.ts';
import { dropOldGenerations } from '../../src/control-plane/disks/generation-store.ts';
import { freeSegments, sweepOrphans } from '../../src/control-plane/disks/remove-objects.ts';
import { readLayers } from '../../src/control-plane/disks/store.ts';
import type { ObjectStore } from '../../src/object-store/object-store.ts';
import { apiForFile } from '../support/api.ts';
import { BLOCKS, freeEverything, KilledProcess, ModelDisk, modelForFile } from '../support/model-disks.ts';
import { tries } from '../support/thorough.ts';

const KEEP_LAST = 3;
const DISKS_MAX = 4;

const api = await apiForFile();
const { db, context } = api;
const model = await modelForFile(api);
const { store } = model;
const options: CompactOptions = { db, store, disk_keys: context.disk_keys };
const never = new AbortController().signal;
const all = Array.from({ length: BLOCKS }, (_, block) => block);

async function objects(prefix = 'disks/'): Promise<string[]> {
  const keys: string[] = [];
  for await (const { key } of store.list(prefix)) keys.push(key);
  return keys.sort();
}

async function held(disk: ModelDisk): Promise<string[]> {
  const rows = await db
    .selectFrom('segment_holders')
    .select('key')
    .where('instance_id', '=', disk.id)
    .execute();
  return rows.map(({ key }) => key).sort();
}

async function retention(disks: readonly ModelDisk[]): Promise<void> {
  await dropOldGenerations(db);
  for (const disk of disks) disk.retained(KEEP_LAST);
}

/** What the API says of a disk's size is what its objects take. */
async function verifyStoredBytes(disk: ModelDisk): Promise<void> {
  let bytes = 0;
  for (const key of await held(disk)) bytes += await store.size(key);
  const { stored_bytes } = await db
    .selectFrom('disks')
    .select('stored_bytes')
    .where('instance_id', '=', disk.id)
    .executeTakeFirstOrThrow();
  assert.equal(stored_bytes, bytes, `stored_bytes of ${disk.id}`);
}

async function verifyAll(disks: readonly ModelDisk[]): Promise<void> {
  for (const disk of disks) {
    await disk.verify();
    await verifyStoredBytes(disk);
  }
}

/** A disk with dropped generations, a pin, a branch, segments under half live, zeroes, encrypted and not. */
async function wasteful(): Promise<ModelDisk> {
  const disk = await ModelDisk.make(model, KEEP_LAST);
  await disk.flush(all, 'noise');
  await disk.pin(1, true);
  await disk.flush(all, 'text', false);
  await disk.flush(all, 'noise');
  await disk.flush([0, 1, 2, 3, 4, 5, 6], 'noise');
  await disk.flush([7, 8, 9], 'zeroes');
  await disk.restore(2);
  await disk.flush([0, 1, 2, 3, 4, 5, 6, 7, 10], 'noise');
  await disk.flush([0, 1, 2, 3, 4, 5, 6], 'text', false);
  await disk.flush([1, 3, 4, 5], 'noise', false);
  await disk.flush([1, 3, 4, 6], 'text');
  await disk.flush([1], 'noise');
  await retention([disk]);
  await disk.pin(1, false);
  await retention([disk]);
  assert.deepEqual([...disk.shown.keys()], [9, 10, 11]);
  return disk;
}

describe('compaction', () => {
  test('keeps only visible generations: their rows and objects, and no segment that is less than half live', async () => {
    const disk = await wasteful();
    const before = await objects(`disks/${disk.id}/`);
    assert.equal(await compactDisk(options, disk.id), true);
    await verifyAll([disk]);
    const rows = await db.selectFrom('generations').selectAll().where('instance_id', '=', disk.id).execute();
    assert.deepEqual(
      rows.map(({ generation }) => generation).sort((a, b) => a - b),
      [9, 10, 11],
    );
    // Whoever reads by an older head still can, for an hour.
    await freeSegments(db, store, context.log, 3_600_000);
    for (const key of before) assert((await store.size(key)) > 0, key);
    await freeEverything(model);
    await disk.verify();
    const left = await objects(`disks/${disk.id}/`);
    assert.deepEqual(left, await held(disk));
    assert.equal(left.filter((key) => key.includes('/map/')).length, 3);
    assert.equal(
      left.filter((key) => !before.includes(key) && key.includes('/seg/1/11-')).length,
      1,
      'rewritten',
    );
    const { stored_bytes } = await db
      .selectFrom('disks')
      .select('stored_bytes')
      .where('instance_id', '=', disk.id)
      .executeTakeFirstOrThrow();
    assert(stored_bytes < 10 * 65_536, `${stored_bytes} bytes`);
    assert.equal(await compactDisk(options, disk.id), true, 'again');
    await freeEverything(model);
    assert.deepEqual(await objects(`disks/${disk.id}/`), left, 'and nothing is written anew');
    await disk.flush([2, 5], 'noise');
    await disk.verify();
    await disk.remove();
  });

  test('harms nothing when it is killed at any step or its response is lost, and the next run completes it', async (t) => {
    // One step in three, which ones by chance: a step is like those beside it.
    const stride = tries(3, 1);
    let step = Math.floor(Math.random() * stride);
    const first = step;
    let disk = await wasteful();
    const links = async () => (await readLayers(db, disk.id, disk.head)).length;
    for (let died = true; died; step += stride) {
      const killed_process = new KilledProcess(options, step);
      await compactDisk(killed_process.options, disk.id).catch((error: Error) =>
        assert(killed_process.died, error),
      );
      died = killed_process.died;
      await freeEverything(model);
      await verifyAll([disk]);
      assert.deepEqual(await objects(), await held(disk));
      if ((await links()) > 3) continue;
      // It was done: the last steps come after that. Once more, and for the next step another disk.
      await compactDisk(options, disk.id);
      await freeEverything(model);
      await verifyAll([disk]);
      await disk.remove();
      if (died) disk = await wasteful();
    }
    t.diagnostic(`every ${stride}. of ${step} steps, from ${first} on`);
    assert(step > 50);
  });

  test('takes effect once when several run concurrently, and loses no commit, restore or fork meanwhile', async () => {
    const disk = await wasteful();
    const outcomes = await Promise.all([
      ...[1, 2, 3].map(() => compactDisk(options, disk.id)),
      disk.flush([0, 4], 'noise').then(() => true),
    ]);
    assert(outcomes.includes(true));
    await disk.verify();
    const [fork] = await Promise.all([disk.fork(11), compactDisk(options, disk.id)]);
    await Promise.all([disk.restore(10), compactDisk(options, disk.id)]);
    await freeEverything(model);
    await verifyAll([disk, fork]);
    await compactDisk(options, fork.id);
    await compactDisk(options, disk.id);
    await freeEverything(model);
    await verifyAll([disk, fork]);
    await disk.remove();
    await fork.remove();
    await freeEverything(model);
    assert.deepEqual(await objects(), []);
  });

  test('gives up when a checkpoint, made after its claim expired, names what it replaces', async () => {
    const disk = await wasteful();
    let slow = true;
    const put: ObjectStore['put'] = async (key, body, signal) => {
      if (slow && key.includes('/map/')) {
        slow = false;
        await disk.flush([2], 'noise');
        assert.equal(await checkpointDisk(options, disk.id), true);
      }
      return store.put(key, body, signal);
    };
    const { description } = store;
    const slowly: ObjectStore = {
      description,
      put,
      get: (key, range, signal) => store.get(key, range, signal),
      size: (key) => store.size(key),
      list: (prefix) => store.list(prefix),
      delete: (key) => store.delete(key),
      check: () => store.check(),
    };
    const placed = await compactDisk({ ...options, store: slowly }, disk.id);
    await freeEverything(model);
    await verifyAll([disk]);
    assert.deepEqual([slow, placed], [false, false]);
    assert.equal(await compactDisk(options, disk.id), true);
    await freeEverything(model);
    await verifyAll([disk]);
    await disk.remove();
  });

  test('as a task compacts each wasteful disk once, and a failing disk does not block others', async () => {
    const [bad, good] = [await wasteful(), await wasteful()];
    await sql`update disks set durable_at = now() - interval '2 hours'`.execute(db);
    assert.deepEqual(await listWasteful(db, 10), [bad.id, good.id].sort());
    const [lost] = (await readLayers(db, bad.id, 11)).map(({ key }) => key);
    await store.delete(lost ?? assert.fail());
    await compactDisks(options, context.log, never);
    // The bad one is left alone for a while; nothing of it was changed.
    assert.deepEqual(await listWasteful(db, 10), []);
    await sql`update disks set compacting_until = now() - interval '1 second'`.execute(db);
    assert.deepEqual(await listWasteful(db, 10), [bad.id]);
    assert.equal((await readLayers(db, bad.id, 11)).length, 7);
    await good.verify();
    await bad.remove();
    await good.remove();
  });
});

describe('a checkpoint', () => {
  test('shortens a long chain once, and later flushes build on it', async () => {
    const disk = await ModelDisk.make(model, 100);
    for (let i = 0; i < 32; i++) await disk.flush([i % BLOCKS], 'noise');
    assert.deepEqual(await listLongChains(db, 10), []);
    await disk.flush([3], 'text');
    assert.deepEqual(await listLongChains(db, 10), [disk.id]);
    await checkpointDisks(options, context.log, never);
    assert.deepEqual(await listLongChains(db, 10), []);
    assert.equal((await readLayers(db, disk.id, 33)).length, 1);
    await disk.flush([4], 'noise');
    assert.equal((await readLayers(db, disk.id, 34)).length, 2);
    await verifyAll([disk]);
    await disk.remove();
    await freeEverything(model);
    assert.deepEqual(await objects(), []);
  });

  test('harms nothing when it is killed at any step', async () => {
    const disk = await ModelDisk.make(model, 100);
    for (let i = 0; i < 5; i++) await disk.flush([i, i + 1], 'noise');
    for (let step = 0, died = true; died; step += 1) {
      const killed_process = new KilledProcess(options, step);
      await checkpointDisk(killed_process.options, disk.id).catch((error: Error) =>
        assert(killed_process.died, error),
      );
      died = killed_process.died;
      await freeEverything(model);
      await verifyAll([disk]);
      assert.deepEqual(await objects(), await held(disk));
    }
    await disk.remove();
  });
});

describe('the sweep of orphans', () => {
  test('keeps young objects, objects that may still be committed, and objects of unknown disks', async () => {
    const disk = await ModelDisk.make(model, 100);
    await disk.flush([1], 'noise');
    const prefix = `disks/${disk.id}`;
    const killed = `${prefix}/seg/0/1-ffffffff-0`;
    const pending = `${prefix}/seg/0/2-ffffffff-0`;
    const elsewhere = 'disks/inst_of_another_installation/seg/0/1-ffffffff-0';
    const own = await objects(`${prefix}/`);
    for (const key of [killed, pending, elsewhere]) await store.put(key, [Buffer.from('x')]);
    await sweepOrphans(db, store, context.log);
    assert.equal((await objects()).length, own.length + 3);
    await sweepOrphans(db, store, context.log, -60_000);
    assert.deepEqual(await objects(), [...own, pending, elsewhere].sort());
    await disk.flush([2], 'noise');
    await sweepOrphans(db, store, context.log, -60_000);
    assert.deepEqual((await objects()).includes(pending), false);
    await store.delete(elsewhere);
    await disk.remove();
  });

  test("measures an object's age by the clock of its store, however wrong that is", async () => {
    const disk = await ModelDisk.make(model, 100);
    const making = `disks/${disk.id}/map/1-ffffffff`;
    await store.put(making, [Buffer.from('x')]);
    for (const skew_h of [-48, 48]) {
      const skewed: ObjectStore = {
        description: store.description,
        put: (key, body) => store.put(key, body),
        get: (key, range) => store.get(key, range),
        size: (key) => store.size(key),
        delete: (key) => store.delete(key),
        check: () => store.check(),
        list: async function* (prefix) {
          for await (const { modified_at, ...entry } of store.list(prefix))
            yield { ...entry, modified_at: new Date(modified_at.getTime() + skew_h * 3_600_000) };
        },
      };
      await sweepOrphans(db, skewed, context.log);
      assert.ok((await objects()).includes(making), `${skew_h} h`);
      await sweepOrphans(db, skewed, context.log, -60_000);
      assert.ok(!(await objects()).includes(making), `${skew_h} h, and old`);
      await store.put(making, [Buffer.from('x')]);
    }
    await disk.remove();
  });
});

const which = { disk: fc.nat({ max: DISKS_MAX - 1 }) };
const generation = fc.nat({ max: 9 });
const blocks = fc.uniqueArray(fc.nat({ max: BLOCKS - 1 }), { minLength: 1 });
const step = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({
      ...which,
      op: fc.constantFrom('noise' as const, 'text' as const, 'zeroes' as const),
      ...{ blocks, encrypted: fc.boolean() },
    }),
  },
  {
    weight: 5,
    arbitrary: fc.record({
      ...which,
      ...{
        op: fc.constantFrom('restore' as const, 'fork' as const, 'pin' as const, 'unpin' as const),
        generation,
      },
    }),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      ...which,
      ...{ op: fc.constantFrom('compact' as const, 'checkpoint' as const), dies: fc.nat({ max: 150 }) },
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      ...which,
      op: fc.constantFrom('retention' as const, 'free' as const, 'delete' as const),
    }),
  },
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

async function run(disks: ModelDisk[], each: Step): Promise<void> {
  const at = each.disk % disks.length;
  const disk = disks[at] ?? assert.fail();
  if ('blocks' in each) return disk.flush(each.blocks, each.op, each.encrypted);
  if ('dies' in each) {
    // Now and then it lives.
    const killed_process = new KilledProcess(options, each.dies > 100 ? Number.POSITIVE_INFINITY : each.dies);
    const work = each.op === 'compact' ? compactDisk : checkpointDisk;
    await work(killed_process.options, disk.id).catch((error: Error) => assert(killed_process.died, error));
    return;
  }
  if ('generation' in each) {
    const known = [...disk.shown.keys()];
    const pick = known[each.generation % known.length];
    if (pick === undefined) return;
    if (each.op === 'restore') await disk.restore(pick);
    else if (each.op !== 'fork') await disk.pin(pick, each.op === 'pin');
    else if (disks.length < DISKS_MAX) disks.push(await disk.fork(pick));
    return;
  }
  if (each.op === 'retention') return retention(disks);
  if (each.op === 'free') return freeEverything(model);
  if (disks.length === 1) return;
  disks.splice(at, 1);
  await disk.remove();
}

test('after any operations on chains, visible generations read as flushed, and the last holder frees all objects', {
  timeout: 600_000,
}, async () => {
  const property = fc.asyncProperty(fc.array(step, { minLength: 20, maxLength: 50 }), async (steps) => {
    const disks = [await ModelDisk.make(model, KEEP_LAST)];
    for (const each of steps) await run(disks, each);
    await verifyAll(disks);
    await retention(disks);
    for (const disk of disks) await compactDisk(options, disk.id);
    await freeEverything(model);
    await verifyAll(disks);
    const needed = new Set((await Promise.all(disks.map(held))).flat());
    assert.deepEqual(await objects(), [...needed].sort());
    for (const disk of disks) await disk.remove();
    await freeEverything(model);
    assert.deepEqual(await objects(), []);
  });
  await fc.assert(property, { numRuns: tries(10, 30) });
});
