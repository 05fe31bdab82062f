/**
 * The disk engine against a model in memory, without a guest: random writes, discards, flushes, flushes that are killed,
 * hosts that are lost, restores to older generations, forks, maps in place of segments, deletions. Flush sink, object
 * store, database and restore are the real ones. After anything that reads, and at the end for every generation of every
 * disk, the bytes are the model's.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import fc from 'fast-check';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { openDataKeys, shareDataKeys } from '../../src/control-plane/disks/data-keys.ts';
import { freeDeleted, freeSegments } from '../../src/control-plane/disks/remove-objects.ts';
import { holdSegments } from '../../src/control-plane/disks/segment-store.ts';
import { advanceHead, readLayers } from '../../src/control-plane/disks/store.ts';
import type { BlockMap } from '../../src/disk-format/block-map.ts';
import { CompressPool } from '../../src/disk-format/compress-pool.ts';
import { KeyRing } from '../../src/disk-format/frame-cipher.ts';
import { diffMaps, loadMap, wholeMap } from '../../src/disk-format/load-map.ts';
import { writeMap } from '../../src/disk-format/map-objects.ts';
import { BLOCK_BYTES } from '../../src/disk-format/segment-format.ts';
import { FlushSink } from '../../src/host/disk/flush-sink.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { IndependentReader } from '../support/independent-reader.ts';
import { restoreDisk } from '../support/restore-disk.ts';
import { tries } from '../support/thorough.ts';

const BLOCKS = 12;
/** The last block is partial. */
const DISK_BYTES = BLOCKS * BLOCK_BYTES - 512 * 5;
const DISKS_MAX = 4;
const BASE = randomBytes(DISK_BYTES);

const api = await apiForFile();
const { db, context } = api;
const owner = await api.person();
const folder = await mkdtemp(join(tmpdir(), 'berth-model-'));
const store = await FolderStore.open(folder);
const pool = new CompressPool();
after(async () => {
  await pool.close();
  await rm(folder, { recursive: true, force: true });
});

interface Disk {
  readonly id: InstanceId;
  epoch: number;
  head: number;
  /** As the guest sees it. */
  live: Buffer;
  /** Block → it was discarded, not written. */
  readonly dirty: Map<number, boolean>;
  /** Every generation that was committed. */
  readonly durable: Map<number, Buffer>;
}

async function newDisk(): Promise<Disk> {
  const { id } = await api.instance(owner);
  const durable = new Map([[0, BASE]]);
  return { id, epoch: 0, head: 0, live: Buffer.from(BASE), dirty: new Map(), durable };
}

async function ring(disk: Disk): Promise<KeyRing> {
  return new KeyRing((await openDataKeys(db, context.disk_keys, disk.id))?.keys ?? []);
}

async function mapOf(disk: Disk, generation: number): Promise<BlockMap> {
  return loadMap({ store, keys: await ring(disk), layers: await readLayers(db, disk.id, generation) });
}

async function restored(disk: Disk, generation: number): Promise<Buffer> {
  const bytes = Buffer.from(BASE);
  const target = {
    size_bytes: bytes.length,
    write: async (at: number, data: Uint8Array) => bytes.set(data, at),
    writeZeroes: async (at: number, length: number) => void bytes.fill(0, at, at + length),
    flush: async () => {},
  };
  const map = await mapOf(disk, generation);
  await restoreDisk({ store, pool, map, keys: await ring(disk), target });
  return bytes;
}

async function verify(disk: Disk, generation: number): Promise<void> {
  const expected = disk.durable.get(generation) ?? assert.fail(`generation ${generation}`);
  assert((await restored(disk, generation)).equals(expected), `generation ${generation} of ${disk.id}`);
}

/** All that is dirty goes to a new sink, up to `blocks` of it. */
async function push(disk: Disk, blocks: number, encrypted: boolean): Promise<FlushSink> {
  const keys = (await openDataKeys(db, context.disk_keys, disk.id)) ?? assert.fail('no keys');
  const sink = new FlushSink({
    ...{ store, pool, disk_id: disk.id, epoch: disk.epoch, generation: disk.head + 1 },
    ...{ key_prefix: `disks/${disk.id}`, size_bytes: DISK_BYTES, spool_bytes: 256 * 1024 },
    head: await mapOf(disk, disk.head),
    data_key: encrypted ? keys.own : null,
  });
  for (const [block, discarded] of [...disk.dirty].slice(0, blocks)) {
    const at = block * BLOCK_BYTES;
    const length = Math.min(BLOCK_BYTES, DISK_BYTES - at);
    if (discarded) await sink.writeZeroes(at, length);
    else await sink.write(at, disk.live.subarray(at, at + length));
  }
  return sink;
}

async function flush(disk: Disk, encrypted: boolean): Promise<void> {
  const { segments, dirty_bytes } = await (await push(disk, BLOCKS, encrypted)).finish();
  disk.dirty.clear();
  if (segments.length === 0) return;
  const commit = {
    ...{ instance_id: disk.id, vm_id: newId('vm'), epoch: disk.epoch, generation: disk.head + 1 },
    ...{ image_version: 'a', segments, consistency: 'crash' as const, dirty_bytes },
  };
  assert.notEqual(await transaction(db, (tx) => advanceHead(tx, commit)), null);
  disk.head += 1;
  disk.durable.set(disk.head, Buffer.from(disk.live));
}

/** As a killed agent leaves it, or one that could still clean up. */
async function killedFlush(disk: Disk, blocks: number, cleanly: boolean): Promise<void> {
  const sink = await push(disk, blocks, true);
  if (cleanly) await sink.abort();
  else await sink.finish();
}

async function moveHead(disk: Disk, generation: number): Promise<void> {
  disk.head = generation;
  disk.epoch += 1;
  const { head, epoch } = disk;
  await db.updateTable('disks').set({ generation: head, epoch }).where('instance_id', '=', disk.id).execute();
}

/** A generation that follows `parent` and changes nothing. */
async function restore(disk: Disk, parent: number): Promise<void> {
  const content = disk.durable.get(parent) ?? assert.fail();
  const generation = disk.head + 1;
  await db
    .insertInto('generations')
    .values({
      ...{
        instance_id: disk.id,
        generation,
        parent: parent === 0 ? null : parent,
        epoch: disk.epoch,
        bytes: 0,
      },
      ...{ consistency: 'offline', segments: '[]', map: null, name: null },
    })
    .execute();
  await moveHead(disk, generation);
  disk.durable.set(generation, content);
  disk.live = Buffer.from(content);
  disk.dirty.clear();
}

/** A disk that begins with another's generation, sharing its segments. Maps belong to one instance: it gets its own. */
async function fork(parent: Disk, generation: number): Promise<Disk> {
  const made = await newDisk();
  const layers = await readLayers(db, parent.id, generation);
  const map = await mapOf(parent, generation);
  await transaction(db, (tx) => shareDataKeys(tx, context.disk_keys, parent.id, made.id, generation));
  const content = parent.durable.get(generation) ?? assert.fail();
  if (generation > 0) {
    const whole = layers.some((layer) => 'full' in layer)
      ? await ownMap(made, generation, wholeMap(map), true)
      : null;
    const segments = whole ? [] : layers;
    await db
      .insertInto('generations')
      .values({
        ...{
          instance_id: made.id,
          generation,
          parent: null,
          epoch: 0,
          bytes: 0,
          consistency: 'offline',
          name: null,
        },
        ...{ segments: JSON.stringify(segments), map: whole && JSON.stringify(whole) },
      })
      .execute();
    await holdSegments(
      db,
      made.id,
      [...(whole ? map.live() : layers)].map(({ key }) => key),
    );
  }
  await moveHead(made, generation);
  made.durable.clear();
  made.durable.set(generation, content);
  made.live = Buffer.from(content);
  return made;
}

async function ownMap(
  disk: Disk,
  generation: number,
  changes: Parameters<typeof writeMap>[0]['changes'],
  full: boolean,
) {
  const { own } = (await openDataKeys(db, context.disk_keys, disk.id)) ?? assert.fail();
  const about = { key_prefix: `disks/${disk.id}`, disk_id: disk.id, disk_bytes: DISK_BYTES, generation };
  const { entries: _, ...ref } = await writeMap({ store, ...about, changes, full, data_key: own });
  return ref;
}

/** A full map for a generation, or a delta from its parent. */
async function mapInPlace(disk: Disk, generation: number, full: boolean): Promise<void> {
  const row = await db
    .selectFrom('generations')
    .select('parent')
    .where('instance_id', '=', disk.id)
    .where('generation', '=', generation)
    .executeTakeFirst();
  if (!row) return;
  const map = await mapOf(disk, generation);
  const changes = full ? wholeMap(map) : diffMaps(await mapOf(disk, row.parent ?? 0), map);
  const ref = await ownMap(disk, generation, changes, full);
  await db
    .updateTable('generations')
    .set({ map: JSON.stringify(ref) })
    .where('instance_id', '=', disk.id)
    .where('generation', '=', generation)
    .execute();
}

async function remove(disk: Disk): Promise<void> {
  await api.as(owner).delete(`/v1/instances/${disk.id}`);
  await freeDeleted(db, store, context.log);
  await freeSegments(db, store, context.log, 0);
}

/** The heads by a reader that shares no code with ours. */
async function readIndependently(disk: Disk): Promise<void> {
  const keys = (await openDataKeys(db, context.disk_keys, disk.id))?.keys ?? [];
  const reader = new IndependentReader((key) => readFileSync(join(folder, key)), keys);
  for (const { key } of await readLayers(db, disk.id, disk.head)) reader.apply(key);
  assert(reader.content(BASE).equals(disk.durable.get(disk.head) ?? assert.fail()));
}

const which = { disk: fc.nat({ max: DISKS_MAX - 1 }) };
const generation = fc.nat({ max: 9 });
const step = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({
      ...which,
      op: fc.constantFrom('noise', 'text', 'same', 'discard'),
      first: fc.nat({ max: BLOCKS - 1 }),
      count: fc.integer({ min: 1, max: 8 }),
      seed: fc.nat(),
    }),
  },
  { weight: 4, arbitrary: fc.record({ ...which, op: fc.constant('flush'), encrypted: fc.boolean() }) },
  {
    weight: 1,
    arbitrary: fc.record({
      ...which,
      op: fc.constant('killed'),
      blocks: fc.nat({ max: BLOCKS }),
      cleanly: fc.boolean(),
    }),
  },
  { weight: 1, arbitrary: fc.record({ ...which, op: fc.constant('lost') }) },
  {
    weight: 2,
    arbitrary: fc.record({ ...which, op: fc.constantFrom('restore', 'fork', 'verify'), generation }),
  },
  { weight: 2, arbitrary: fc.record({ ...which, op: fc.constant('map'), generation, full: fc.boolean() }) },
  { weight: 2, arbitrary: fc.record({ ...which, op: fc.constant('delete') }) },
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

function write(disk: Disk, op: string, first: number, count: number, seed: number): void {
  for (let block = first; block < Math.min(first + count, BLOCKS); block++) {
    const now = disk.live.subarray(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES);
    if (op === 'noise') randomBytes(now.length).copy(now);
    if (op === 'text') now.fill(`line ${seed} `);
    if (op === 'discard') now.fill(0);
    disk.dirty.delete(block);
    disk.dirty.set(block, op === 'discard');
  }
}

async function run(disks: Disk[], each: Step): Promise<void> {
  const at = each.disk % disks.length;
  const disk = disks[at] ?? assert.fail();
  const known = [...disk.durable.keys()];
  const pick = 'generation' in each ? (known[each.generation % known.length] ?? 0) : 0;
  if ('first' in each) write(disk, each.op, each.first, each.count, each.seed);
  else if ('encrypted' in each) await flush(disk, each.encrypted);
  else if ('cleanly' in each) await killedFlush(disk, each.blocks, each.cleanly);
  else if ('full' in each) await mapInPlace(disk, pick, each.full);
  else if (each.op === 'restore') await restore(disk, pick);
  else if (each.op === 'verify') await verify(disk, pick);
  else if (each.op === 'fork') {
    if (disks.length < DISKS_MAX) disks.push(await fork(disk, pick));
  } else if (each.op === 'delete') {
    if (disks.length === 1) return;
    disks.splice(at, 1);
    await remove(disk);
  } else {
    disk.live = await restored(disk, disk.head);
    assert(disk.live.equals(disk.durable.get(disk.head) ?? assert.fail()), 'after the loss of a host');
    disk.dirty.clear();
  }
}

/** Seldom drawn: a fork whose chain has a segment of which nothing is needed any more, and whose parent goes. */
const FORK_OUTLIVES: Step[] = [
  { disk: 0, op: 'noise', first: 0, count: 3, seed: 0 },
  { disk: 0, op: 'flush', encrypted: true },
  { disk: 0, op: 'text', first: 0, count: 4, seed: 1 },
  { disk: 0, op: 'flush', encrypted: false },
  { disk: 0, op: 'fork', generation: 2 },
  { disk: 0, op: 'delete' },
  { disk: 0, op: 'verify', generation: 0 },
  { disk: 0, op: 'noise', first: 3, count: 2, seed: 2 },
  { disk: 0, op: 'flush', encrypted: true },
  { disk: 0, op: 'lost' },
];

test('after any operations on disks, every generation reads as it was flushed', {
  timeout: 600_000,
}, async () => {
  const property = fc.asyncProperty(fc.array(step, { minLength: 20, maxLength: 60 }), async (steps) => {
    const disks = [await newDisk()];
    for (const each of steps) await run(disks, each);
    for (const disk of disks) {
      for (const number of disk.durable.keys()) await verify(disk, number);
      await readIndependently(disk);
    }
    for (const disk of disks) await remove(disk);
    for await (const { key } of store.list('disks/')) assert.fail(`${key} is left`);
  });
  await fc.assert(property, { numRuns: tries(10, 30), examples: [[FORK_OUTLIVES]] });
});
