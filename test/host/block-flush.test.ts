/** Flush, load, restore: generations of a disk against a model in memory, and what must happen when something fails. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import fc from 'fast-check';
import { newBlocks } from '../../src/disk-format/block-buffers.ts';
import type { BlockMap } from '../../src/disk-format/block-map.ts';
import { CompressPool } from '../../src/disk-format/compress-pool.ts';
import { type DataKey, KeyRing, newDataKey } from '../../src/disk-format/frame-cipher.ts';
import { loadMap, type SegmentRef } from '../../src/disk-format/load-map.ts';
import { BLOCK_BYTES, SegmentCorruptError } from '../../src/disk-format/segment-format.ts';
import { verifySegment } from '../../src/disk-format/verify-disk.ts';
import { FlushSink } from '../../src/host/disk/flush-sink.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import { type ObjectStore, ObjectStoreUnavailableError } from '../../src/object-store/object-store.ts';
import { restoreDisk } from '../support/restore-disk.ts';
import { tries } from '../support/thorough.ts';

const MIB = 1024 * 1024;
const DATA_KEY = newDataKey();
const keys = new KeyRing([DATA_KEY]);
const BLOCKS = 40;
/** The last block is partial. */
const DISK_BYTES = BLOCKS * BLOCK_BYTES - 512 * 3;

let folder: string;
let store: FolderStore;
const pool = new CompressPool();
let runs = 0;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-flush-'));
  store = await FolderStore.open(folder);
});
after(async () => {
  await pool.close();
  await rm(folder, { recursive: true, force: true });
});

interface Place {
  readonly key_prefix: string;
  readonly generation: number;
  readonly into?: ObjectStore;
  readonly spool_bytes?: number;
  readonly size_bytes?: number;
  readonly signal?: AbortSignal;
  readonly data_key?: DataKey | null;
}

function sinkFor(head: BlockMap | undefined, place: Place): FlushSink {
  const { key_prefix, generation, into = store, ...rest } = place;
  return new FlushSink({
    ...{ store: into, pool, disk_id: 'inst_t', epoch: 1, generation, key_prefix, head },
    data_key: DATA_KEY,
    ...{ size_bytes: DISK_BYTES, spool_bytes: 256 * 1024, upload_concurrency: 2 },
    ...rest,
  });
}

/** A disk in memory as the target of a restore; remembers which bytes were touched. */
function target(bytes: Buffer) {
  return {
    size_bytes: bytes.length,
    writes: 0,
    async write(offset: number, data: Uint8Array): Promise<void> {
      assert(offset + data.length <= bytes.length);
      bytes.set(data, offset);
      this.writes += 1;
    },
    async writeZeroes(offset: number, length: number): Promise<void> {
      bytes.fill(0, offset, offset + length);
    },
    async flush(): Promise<void> {},
  };
}

/** The store, except for what `change` replaces. */
function storeWith(change: Partial<ObjectStore>): ObjectStore {
  return {
    description: 'a test store',
    put: (key, body, signal) => store.put(key, body, signal),
    get: (key, range, signal) => store.get(key, range, signal),
    size: (key) => store.size(key),
    list: (prefix) => store.list(prefix),
    delete: (key) => store.delete(key),
    check: () => store.check(),
    ...change,
  };
}

/** From where the sink has room for it, which is written to again once it is given back. */
async function writeAsServer(sink: FlushSink, offset: number, content: Buffer): Promise<void> {
  const room = sink.rooms.take(content.length);
  if (!room) return sink.write(offset, content);
  content.copy(room);
  await sink.write(offset, room);
  sink.rooms.give(room);
}

async function keysBelow(prefix: string): Promise<string[]> {
  const keys: string[] = [];
  for await (const { key } of store.list(prefix)) keys.push(key);
  return keys;
}

const write = fc.record({
  op: fc.constantFrom('noise', 'text', 'same', 'zero-data', 'zero'),
  first: fc.nat({ max: BLOCKS - 1 }),
  // A batch has 16.
  count: fc.oneof(fc.integer({ min: 1, max: 20 }), fc.constant(16)),
});

function contentFor(op: string, length: number, now: Buffer): Buffer {
  if (op === 'noise') return randomBytes(length);
  if (op === 'text') return Buffer.alloc(length, `${Math.random()} `);
  return op === 'same' ? Buffer.from(now) : Buffer.alloc(length);
}

test('any generations of writes, zeroes and overwrites are restored byte for byte', {
  timeout: 300_000,
}, async () => {
  const generations = fc.array(fc.array(write, { maxLength: 8 }), { minLength: 1, maxLength: 5 });
  const encrypted = fc.array(fc.boolean(), { minLength: 5, maxLength: 5 });
  const property = fc.asyncProperty(
    generations,
    encrypted,
    fc.boolean(),
    async (flushes, with_key, in_place) => {
      const key_prefix = `runs/${++runs}`;
      const base = randomBytes(DISK_BYTES);
      const model = Buffer.from(base);
      const segments: SegmentRef[] = [];
      for (const [i, writes] of flushes.entries()) {
        const head = i === 0 ? undefined : await loadMap({ store, keys, layers: segments });
        const data_key = with_key[i] ? DATA_KEY : null;
        const sink = sinkFor(head, { key_prefix, generation: i + 1, data_key });
        const dirty = new Set<number>();
        for (const { op, first, count } of writes) {
          const offset = first * BLOCK_BYTES;
          const end = Math.min(offset + count * BLOCK_BYTES, DISK_BYTES);
          for (let block = first; block * BLOCK_BYTES < end; block++) dirty.add(block);
          const content = contentFor(op, end - offset, model.subarray(offset, end));
          content.copy(model, offset);
          if (op === 'zero') await sink.writeZeroes(offset, end - offset);
          else await writeAsServer(sink, offset, content);
        }
        const result = await sink.finish();
        assert.equal(result.dirty_bytes, dirty.size * BLOCK_BYTES);
        segments.push(...result.segments.map((segment) => ({ ...segment, disk_id: 'inst_t' })));
      }
      for (const { key, size_bytes } of segments) {
        const object = await store.get(key);
        assert.equal(object.length, size_bytes);
        verifySegment(key, object, keys);
      }
      assert.deepEqual((await keysBelow(`${key_prefix}/`)).sort(), segments.map(({ key }) => key).sort());
      const map = await loadMap({ store, keys, layers: segments, concurrency: 2 });
      const restored = Buffer.from(base);
      const options = { store, map, keys, target: target(restored), concurrency: 3 };
      const progress = await restoreDisk(in_place ? options : { ...options, pool });
      assert.equal(progress.done_blocks, map.count);
      assert(restored.equals(model));
    },
  );
  await fc.assert(property, { numRuns: tries(15, 40) });
});

async function written(key_prefix: string, blocks: number): Promise<SegmentRef[]> {
  const sink = sinkFor(undefined, { key_prefix, generation: 1, size_bytes: 64 * MIB, spool_bytes: 8 * MIB });
  for (let block = 0; block < blocks; block++)
    await sink.write(block * BLOCK_BYTES, randomBytes(BLOCK_BYTES));
  const { segments } = await sink.finish();
  return [...segments];
}

test('segments are limited in size, and only the last is marked as last', async () => {
  const segments = await written('bounded', 100);
  assert(segments.length > 1);
  for (const [i, { key }] of segments.entries()) {
    const { identity } = verifySegment(key, await store.get(key), keys);
    assert.equal(identity.part, i);
    assert.equal(identity.last, i === segments.length - 1);
  }
});

test('a small flush is one object, and one without changes none', async () => {
  const segments = await written('small', 3);
  assert.equal(segments.length, 1);
  const head = await loadMap({ store, keys, layers: segments });
  const sink = sinkFor(head, { key_prefix: 'small', generation: 2, size_bytes: 64 * MIB });
  const first = head.get(0) ?? assert.fail();
  const same = Buffer.alloc(BLOCK_BYTES);
  await restoreDisk({
    store,
    keys,
    map: head,
    target: {
      ...target(Buffer.alloc(64 * MIB)),
      write: async (at, data) => void (at === 0 && same.set(data.subarray(0, BLOCK_BYTES))),
    },
  });
  assert.equal(first.block, 0);
  await sink.write(0, same);
  assert.deepEqual(await sink.finish(), {
    segments: [],
    dirty_bytes: BLOCK_BYTES,
    uploaded_bytes: 0,
    skipped_bytes: BLOCK_BYTES,
    blocks: 0,
  });
});

test('zeroes over the base image are recorded; over zeroes of the head they are not', async () => {
  const first = sinkFor(undefined, { key_prefix: 'zeroes', generation: 1 });
  await first.writeZeroes(0, 4 * BLOCK_BYTES);
  const { segments, blocks } = await first.finish();
  assert.equal(blocks, 4);
  const second = sinkFor(await loadMap({ store, keys, layers: segments }), {
    key_prefix: 'zeroes',
    generation: 2,
  });
  await second.writeZeroes(0, 2 * BLOCK_BYTES);
  await second.write(2 * BLOCK_BYTES, Buffer.alloc(3 * BLOCK_BYTES));
  const result = await second.finish();
  assert.equal(result.blocks, 1); // block 4, of which the head says nothing
  assert.equal(result.skipped_bytes, 4 * BLOCK_BYTES);
});

test('a write waits when the spool is full, and its bound holds', async () => {
  const gate = Promise.withResolvers<void>();
  const slow = storeWith({
    put: (key, body, signal) => gate.promise.then(() => store.put(key, body, signal)),
  });
  const sink = sinkFor(undefined, {
    key_prefix: 'slow',
    generation: 1,
    into: slow,
    size_bytes: 64 * MIB,
    spool_bytes: 4 * MIB,
  });
  let acknowledged = 0;
  const writes = Array.from({ length: 32 }, async (_, i) => {
    await sink.write(i * MIB, randomBytes(MIB));
    acknowledged += 1;
  });
  while (sink.spool_used_bytes < 3 * MIB) await new Promise(setImmediate);
  for (let i = 0; i < 200; i++) {
    await pool.pack({
      blocks: newBlocks(1),
      known: new Uint8Array(16),
      known_present: new Uint8Array(1),
    });
    assert(sink.spool_used_bytes <= 4 * MIB);
  }
  assert(acknowledged <= 4, `${acknowledged} MiB are acknowledged`);
  gate.resolve();
  await Promise.all(writes);
  const { blocks } = await sink.finish();
  assert.equal(blocks, 32 * 16);
  assert.equal(sink.spool_used_bytes, 0);
});

test('a failing upload fails the writes and the finish with its cause, and abort leaves nothing', async () => {
  const cause = new ObjectStoreUnavailableError('the bucket is away');
  for (const failing of [1, 2, 4]) {
    let puts = 0;
    const broken = storeWith({
      put: (key, body, signal) => (++puts === failing ? Promise.reject(cause) : store.put(key, body, signal)),
    });
    const sink = sinkFor(undefined, {
      key_prefix: 'broken',
      generation: failing,
      into: broken,
      size_bytes: 64 * MIB,
      spool_bytes: 4 * MIB,
    });
    const pushing = (async () => {
      for (let i = 0; i < 1_000; i++) await sink.write(i * BLOCK_BYTES, randomBytes(BLOCK_BYTES));
    })();
    await assert.rejects(pushing, cause);
    await assert.rejects(sink.flush(), cause);
    await assert.rejects(sink.finish(), cause);
    await sink.abort();
    assert.deepEqual(await keysBelow('broken/'), []);
  }
});

test('an upload with a lost response does not fail the flush', async () => {
  const forgetful = storeWith({
    async put(key, body, signal) {
      await store.put(key, body, signal);
      await store.put(key, body, signal); // the retry of a client that saw no answer
    },
  });
  const sink = sinkFor(undefined, { key_prefix: 'lost', generation: 1, into: forgetful });
  await sink.write(0, randomBytes(BLOCK_BYTES));
  assert.equal((await sink.finish()).segments.length, 1);
});

test('kept segments stay when the flush is aborted', async () => {
  const sink = sinkFor(undefined, { key_prefix: 'kept', generation: 1 });
  await sink.write(0, randomBytes(BLOCK_BYTES));
  const { segments } = await sink.finish();
  sink.keep();
  await sink.abort();
  assert.deepEqual(
    await keysBelow('kept/'),
    segments.map(({ key }) => key),
  );
});

test('an aborted signal ends a flush that waits for the store', async () => {
  const stop = new AbortController();
  const hung = storeWith({
    put: (_key, _body, signal) =>
      new Promise((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason))),
  });
  const sink = sinkFor(undefined, { key_prefix: 'hung', generation: 1, into: hung, signal: stop.signal });
  await sink.write(0, randomBytes(BLOCK_BYTES));
  const finished = sink.finish();
  setImmediate(() => stop.abort(new Error('enough')));
  await assert.rejects(finished, /enough/);
  await sink.abort();
});

test('a write that is not whole blocks of the disk is refused', async () => {
  const sink = sinkFor(undefined, { key_prefix: 'odd', generation: 1 });
  await assert.rejects(sink.write(512, Buffer.alloc(BLOCK_BYTES)), { errno: 22 });
  await assert.rejects(sink.write(0, Buffer.alloc(512)), { errno: 22 });
  await assert.rejects(sink.writeZeroes(BLOCKS * BLOCK_BYTES, BLOCK_BYTES), { errno: 22 });
  await sink.write((BLOCKS - 1) * BLOCK_BYTES, Buffer.alloc(DISK_BYTES - (BLOCKS - 1) * BLOCK_BYTES, 1));
  assert.equal((await sink.finish()).blocks, 1);
});

test('a corrupt block is detected, named and never written', async () => {
  const segments = await written('rotten', 30);
  const map = await loadMap({ store, keys, layers: segments });
  const victim = map.get(17) ?? assert.fail();
  const rotten = storeWith({
    async get(key, range, signal) {
      const bytes = Buffer.from(await store.get(key, range, signal));
      const at = victim.offset + 100 - (range?.offset ?? 0);
      if (key === victim.key && at >= 0 && at < bytes.length) bytes[at] = (bytes[at] ?? 0) ^ 1;
      return bytes;
    },
  });
  for (const extra of [{}, { pool }]) {
    const bytes = Buffer.alloc(64 * MIB);
    const restoring = restoreDisk({ store: rotten, map, keys, target: target(bytes), ...extra });
    await assert.rejects(
      restoring,
      (error) => error instanceof SegmentCorruptError && error.key === victim.key && error.block === 17,
    );
    assert(bytes.subarray(17 * BLOCK_BYTES, 18 * BLOCK_BYTES).every((byte) => byte === 0));
  }
});

test('a missing, cut or swapped segment is named', async () => {
  const segments = await written('gone', 80);
  const [one, two] = segments;
  assert(one && two);
  const map = await loadMap({ store, keys, layers: segments });
  const swapped = storeWith({
    get: (key, range, signal) => store.get(key === one.key ? two.key : key, range, signal),
  });
  const named = (error: unknown): boolean => error instanceof SegmentCorruptError && error.key === one.key;
  await assert.rejects(loadMap({ store: swapped, keys, layers: segments }), named);
  await assert.rejects(loadMap({ store, keys, layers: [{ ...one, size_bytes: one.size_bytes + 1 }] }), named);
  for (const key_id of [null, newDataKey().key_id]) {
    await assert.rejects(loadMap({ store, keys, layers: [{ ...one, key_id }] }), named);
  }
  await assert.rejects(loadMap({ store, keys, layers: [{ ...one, disk_id: 'inst_other' }] }), named);
  await store.delete(one.key);
  await assert.rejects(loadMap({ store, keys, layers: segments }), named);
  await assert.rejects(restoreDisk({ store, map, keys, target: target(Buffer.alloc(64 * MIB)) }), named);
});
