import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { BlockMap, BlockSet } from './block-map.ts';
import { FRAME_KIND, type SegmentEntry } from './segment-format.ts';

const IDENTITY = {
  disk_id: 'd',
  disk_bytes: 0,
  epoch: 1,
  generation: 1,
  attempt: 0,
  part: 0,
  last: true,
  encryption: null,
};

/** Typical block numbers: adjacent, evenly spaced and random. */
const blockNumber = fc.oneof(
  fc.nat({ max: 64 }),
  fc.nat({ max: 4_000 }).map((n) => n * 1_048_573),
  fc.nat({ max: 2 ** 32 - 1 }),
);
const segment = fc.uniqueArray(
  fc.record({
    block: blockNumber,
    stored_bytes: fc.nat({ max: 65_536 }),
    kind: fc.constantFrom(...Object.values(FRAME_KIND)),
    mark: fc.nat({ max: 2 ** 32 - 1 }),
    hash: fc.uint8Array({ minLength: 16, maxLength: 16 }),
  }),
  { maxLength: 60, selector: ({ block }) => block },
);

/** Blocks to remove after each segment. */
const removals = fc.array(fc.array(blockNumber, { maxLength: 30 }), { maxLength: 8 });

test('a map has for each block the entry of the last segment with that block', () => {
  fc.assert(
    fc.property(fc.array(segment, { maxLength: 8 }), removals, (segments, taken_out) => {
      const map = new BlockMap();
      const model = new Map<number, SegmentEntry & { key: string }>();
      for (const [i, drawn] of segments.entries()) {
        let offset = 0;
        const entries = drawn.map((entry) => {
          const placed = { ...entry, offset };
          offset += entry.stored_bytes;
          return placed;
        });
        for (const entry of entries) model.set(entry.block, { ...entry, key: `s${i}` });
        map.applySegment({ key: `s${i}`, size_bytes: offset, identity: IDENTITY, entries });
        for (const block of taken_out[i] ?? []) {
          map.remove(block);
          model.delete(block);
        }
      }
      assert.equal(map.count, model.size);
      const seen = [...map.inBlockOrder()];
      assert.deepEqual(
        seen.map(({ block }) => block),
        [...model.keys()].sort((a, b) => a - b),
      );
      for (const location of seen) {
        const expected = model.get(location.block) ?? assert.fail('not in the model');
        const { segment, ...found } = location;
        assert.equal(segment.key, expected.key);
        assert.deepEqual({ ...found, hash: [...found.hash] }, { ...expected, hash: [...expected.hash] });
        assert.deepEqual(map.get(location.block), location);
        assert.equal(map.isZero(location.block), expected.kind === FRAME_KIND.zero);
      }
      const order = [...map.inSegmentOrder()];
      assert.equal(order.length, model.size);
      for (const [i, b] of order.entries()) {
        const a = order[i - 1];
        if (!a) continue;
        const rank = Number(b.key.slice(1)) - Number(a.key.slice(1)) || b.offset - a.offset;
        assert(rank >= 0, 'by segment, then offset');
      }
      for (const { key, live_blocks, live_bytes } of map.live()) {
        const own = [...model.values()].filter((entry) => entry.key === key);
        assert.equal(live_blocks, own.length);
        assert.equal(
          live_bytes,
          own.reduce((sum, { stored_bytes }) => sum + stored_bytes, 0),
        );
      }
    }),
  );
});

test('a block without a segment is absent', () => {
  const map = new BlockMap();
  assert.equal(map.get(0), undefined);
  assert.equal(map.hashOf(7), undefined);
  assert.equal(map.isZero(7), false);
  assert.equal(map.has(2 ** 32 - 1), false);
});

test('a set of blocks remembers each once', () => {
  fc.assert(
    fc.property(fc.array(blockNumber, { maxLength: 200 }), (blocks) => {
      const set = new BlockSet();
      const model = new Set<number>();
      for (const block of blocks) {
        assert.equal(set.add(block), !model.has(block));
        model.add(block);
      }
      assert.equal(set.count, model.size);
    }),
  );
});

test('a large map is sorted in steps, so that other work gets its turn', () => {
  const count = 100_000;
  const entries = Array.from({ length: count }, (_, i) => ({
    ...{ block: (i * 7_919) % count, offset: 0, stored_bytes: 0, kind: FRAME_KIND.zero, mark: 0 },
    hash: new Uint8Array(16),
  }));
  const map = new BlockMap();
  map.reserve(count);
  map.applySegment({ key: 's', size_bytes: 1, identity: IDENTITY, entries });
  let before_first = 0;
  const seen: number[] = [];
  for (const location of map.stepsInBlockOrder()) {
    if (location) seen.push(location.block);
    else if (seen.length === 0) before_first += 1;
  }
  assert(before_first > count / 100, `${before_first} steps`);
  assert.deepEqual(
    seen,
    Array.from({ length: count }, (_, block) => block),
  );
});
