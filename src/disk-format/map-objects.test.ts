import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { ObjectNotFoundError, ObjectRangeError, type ObjectStore } from '../object-store/object-store.ts';
import { BlockMap, type SegmentSource } from './block-map.ts';
import { KeyRing, newDataKey } from './frame-cipher.ts';
import { diffMaps, loadMap, wholeMap } from './load-map.ts';
import { MAP_PIECE_BYTES, type MapChange, readMap, type WrittenMap, writeMap } from './map-objects.ts';
import { BLOCK_BYTES, FRAME_KIND, SegmentCorruptError, type SegmentEntry } from './segment-format.ts';

const DATA_KEY = newDataKey();
const keys = new KeyRing([DATA_KEY]);
const DISK_BYTES = 2 ** 32 * BLOCK_BYTES;

/** An object store in memory. */
function memoryStore() {
  const objects = new Map<string, Buffer>();
  const store: Pick<ObjectStore, 'put' | 'get'> = {
    async put(key, body) {
      assert(!objects.has(key));
      objects.set(key, Buffer.concat(body));
    },
    async get(key, range) {
      const object = objects.get(key);
      if (!object) throw new ObjectNotFoundError(key);
      if (range && range.offset + range.length > object.length) throw new ObjectRangeError(key);
      return Buffer.from(range ? object.subarray(range.offset, range.offset + range.length) : object);
    },
  };
  return { objects, store: store as ObjectStore };
}

function source(number: number): SegmentSource {
  const encryption = number % 2 === 0 ? null : { key_id: DATA_KEY.key_id, salt: Buffer.alloc(32, number) };
  const [disk_id, key] = [`inst_${number % 3}`, `disks/d/seg/1/${number}-00000000-0`];
  return { key, size_bytes: 2 ** 25, disk_id, epoch: number, generation: number * 7, encryption };
}

interface Drawn {
  readonly block: number;
  readonly segment: number;
  readonly kind: 0 | 1 | 2;
  readonly length: number;
  readonly offset: number;
  readonly mark: number;
  readonly hash: Uint8Array;
}

const drawn: fc.Arbitrary<Drawn> = fc.record({
  block: fc.oneof(fc.nat({ max: 40 }), fc.nat({ max: 2 ** 32 - 1 })),
  segment: fc.nat({ max: 5 }),
  kind: fc.constantFrom(...Object.values(FRAME_KIND)),
  length: fc.integer({ min: 1, max: BLOCK_BYTES - 1 }),
  offset: fc.nat({ max: 15 * 1024 * 1024 }),
  mark: fc.nat({ max: 2 ** 32 - 1 }),
  hash: fc.uint8Array({ minLength: 16, maxLength: 16 }),
});
const blocks = fc.array(drawn, { maxLength: 60 });

function mapOf(entries: Iterable<Drawn>): BlockMap {
  const map = new BlockMap();
  for (const { segment, length, ...rest } of entries) {
    const of = source(segment);
    const tag = of.encryption ? 16 : 0;
    const stored_bytes = { 0: BLOCK_BYTES + tag, 1: length + tag, 2: 0 }[rest.kind];
    const mark = rest.kind === FRAME_KIND.zero ? 0 : rest.mark;
    const entry: SegmentEntry = { ...rest, mark, stored_bytes };
    map.set(map.addSegment(of), entry);
  }
  return map;
}

/** The content of a map, for comparison. */
function said(map: BlockMap): unknown[] {
  return [...map.inBlockOrder()].map(({ hash, segment, ...rest }) => {
    const { encryption, ...of } = segment;
    const key = encryption && [encryption.key_id, Buffer.from(encryption.salt).toString('hex')];
    return { ...rest, hash: [...hash], segment: { ...of, key } };
  });
}

async function write(
  store: ObjectStore,
  changes: Iterable<MapChange | undefined>,
  { full = true, encrypted = true, disk_bytes = DISK_BYTES } = {},
): Promise<WrittenMap> {
  const data_key = encrypted ? DATA_KEY : null;
  const about = { key_prefix: 'disks/d', disk_id: 'inst_d', disk_bytes, generation: 9 };
  return writeMap({ store, ...about, full, changes, data_key });
}

test('a full map and deltas on it read back as the maps they were made from', async () => {
  const property = fc.asyncProperty(
    fc.array(blocks, { minLength: 1, maxLength: 4 }),
    fc.boolean(),
    async (states, encrypted) => {
      const { store, objects } = memoryStore();
      const maps = states.map(mapOf);
      const layers: WrittenMap[] = [];
      for (const [i, map] of maps.entries()) {
        const before = maps[i - 1];
        const changes = before ? diffMaps(before, map) : wholeMap(map);
        const written = await write(store, changes, { full: i === 0, encrypted });
        assert.equal(objects.get(written.key)?.length, written.size_bytes);
        layers.push(written);
        const loaded = await loadMap({ store, keys, layers });
        assert.equal(loaded.count, map.count);
        assert.deepEqual(said(loaded), said(map));
      }
    },
  );
  await fc.assert(property, { numRuns: 60 });
});

test('equal maps have no difference, and a difference has only changed blocks', () => {
  fc.assert(
    fc.property(blocks, blocks, (one, more) => {
      const [before, after] = [mapOf(one), mapOf([...one, ...more])];
      assert.deepEqual([...diffMaps(before, mapOf(one))], []);
      const touched = new Set(more.map(({ block }) => block));
      for (const { block } of diffMaps(before, after)) assert(touched.has(block));
      for (const { block, to } of diffMaps(after, new BlockMap())) {
        assert.equal(to, null);
        assert(after.has(block));
      }
    }),
  );
});

test('a map of several pieces reads back, and names only its live segments', async () => {
  const { store, objects } = memoryStore();
  const map = new BlockMap();
  const gone = map.addSegment(source(0));
  map.set(gone, { block: 0, offset: 0, stored_bytes: 9, kind: 1, mark: 0, hash: Buffer.alloc(16) });
  const own = map.addSegment(source(1));
  const count = Math.ceil((2 * MAP_PIECE_BYTES) / 40) + 5;
  for (let block = 0; block < count; block++) {
    map.set(own, {
      block,
      offset: block,
      stored_bytes: 40,
      kind: 1,
      mark: block,
      hash: Buffer.alloc(16, block),
    });
  }
  const ref = await write(store, wholeMap(map));
  const loaded = await loadMap({ store, keys, layers: [ref] });
  assert.deepEqual(loaded.get(count - 1), map.get(count - 1));
  assert.deepEqual(
    [...loaded.live()].map(({ key, live_blocks }) => [key, live_blocks]),
    [[source(1).key, count]],
  );
  // Swaps two valid pieces.
  const object = objects.get(ref.key) ?? assert.fail();
  const size = MAP_PIECE_BYTES + 16;
  const swapped = Buffer.from(object);
  object.copy(swapped, 160, 160 + size, 160 + 2 * size);
  object.copy(swapped, 160 + size, 160, 160 + size);
  objects.set(ref.key, swapped);
  await assert.rejects(loadMap({ store, keys, layers: [ref] }), /piece 0 does not decrypt/);
});

test('a map with any single bit flipped is refused, encrypted or not', async () => {
  const { store, objects } = memoryStore();
  const small = mapOf([
    { block: 3, segment: 1, kind: 1, length: 5, offset: 0, mark: 4, hash: Buffer.alloc(16, 1) },
    { block: 9, segment: 2, kind: 2, length: 0, offset: 0, mark: 0, hash: Buffer.alloc(16, 2) },
  ]);
  for (const encrypted of [true, false]) {
    const ref = await write(store, wholeMap(small), { encrypted });
    const object = objects.get(ref.key) ?? assert.fail();
    for (let bit = 0; bit < object.length * 8; bit++) {
      const rotten = Buffer.from(object);
      rotten[bit >>> 3] = (rotten[bit >>> 3] ?? 0) ^ (1 << (bit & 7));
      objects.set(ref.key, rotten);
      await assert.rejects(loadMap({ store, keys, layers: [ref] }), SegmentCorruptError, `bit ${bit}`);
    }
  }
});

test('a map that is cut, extended, missing, swapped, or of another disk, kind or key is refused', async () => {
  const { store, objects } = memoryStore();
  const entry: Drawn = {
    block: 3,
    segment: 1,
    kind: 1,
    length: 5,
    offset: 0,
    mark: 4,
    hash: Buffer.alloc(16),
  };
  const ref = await write(store, wholeMap(mapOf([entry])));
  const other = await write(store, wholeMap(mapOf([{ ...entry, offset: 1 }])));
  const empty = await write(store, []);
  const object = objects.get(ref.key) ?? assert.fail();
  const refused = (change: Partial<WrittenMap>, ring = keys) =>
    assert.rejects(loadMap({ store, keys: ring, layers: [{ ...ref, ...change }] }), SegmentCorruptError);
  await refused({ full: false });
  await refused({ key_id: newDataKey().key_id });
  await refused({ key_id: null });
  await refused({}, KeyRing.none);
  await refused({}, new KeyRing([{ ...newDataKey(), key_id: DATA_KEY.key_id }]));
  await assert.rejects(readMap(new BlockMap(), { store, keys, ref, disk_id: 'inst_x' }), /another disk/);
  for (const key of [other.key, empty.key]) {
    objects.set(ref.key, objects.get(key) ?? assert.fail());
    await refused({});
    await refused({ size_bytes: objects.get(key)?.length ?? 0 });
  }
  for (let length = 0; length < object.length; length++) {
    objects.set(ref.key, object.subarray(0, length));
    await refused({});
    await refused({ size_bytes: length });
  }
  objects.set(ref.key, Buffer.concat([object, Buffer.from([0])]));
  await refused({ size_bytes: object.length + 1 });
  objects.delete(ref.key);
  await refused({});
});

test('an entry past the end of the disk is refused', async () => {
  const { store } = memoryStore();
  const entry: Drawn = {
    block: 3,
    segment: 1,
    kind: 1,
    length: 5,
    offset: 0,
    mark: 4,
    hash: Buffer.alloc(16),
  };
  const ref = await write(store, wholeMap(mapOf([entry])), { disk_bytes: 3 * BLOCK_BYTES });
  await assert.rejects(loadMap({ store, keys, layers: [ref] }), /block 3: is past the end of the disk/);
});
