import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { present } from '../lib/assert.ts';
import { frameCrc, packBlock } from './frame-codec.ts';
import {
  BLOCK_BYTES,
  decodeDirectory,
  ENTRY_BYTES,
  encodeTail,
  FRAME_KIND,
  type NewEntry,
  SegmentCorruptError,
  type SegmentIdentity,
  TRAILER_BYTES,
} from './segment-format.ts';
import { segmentKey, verifyKey } from './segment-key.ts';
import { verifySegment } from './verify-segment.ts';

const IDENTITY: SegmentIdentity = {
  disk_id: 'inst_01hzy0000000000000000000aa',
  disk_bytes: 1024 * BLOCK_BYTES,
  epoch: 3,
  generation: 17,
  attempt: 0x00abcdef,
  part: 0,
  last: true,
};
const KEY = segmentKey('disks/x', IDENTITY);

function build(blocks: ReadonlyMap<number, Buffer>, identity = IDENTITY): Buffer {
  const entries: NewEntry[] = [];
  const frames: Uint8Array[] = [];
  for (const [block, data] of blocks) {
    const { kind, stored, hash } = present(packBlock(data, undefined), 'a frame');
    const crc32 = kind === FRAME_KIND.zero ? 0 : frameCrc(stored);
    entries.push({ block, kind, stored_bytes: stored.length, crc32, hash });
    frames.push(stored);
  }
  return Buffer.concat([...frames, encodeTail(identity, entries)]);
}

function text(seed: number): Buffer {
  return Buffer.alloc(BLOCK_BYTES, `line ${seed}\n`);
}

const SMALL = build(
  new Map([
    [5, text(5)],
    [2, Buffer.alloc(BLOCK_BYTES)],
    [1023, text(9)],
  ]),
);

test('what is encoded is decoded: identity, entries and their order', () => {
  const identity = fc.record({
    disk_id: fc.string({ unit: fc.constantFrom(...'abc_019'), minLength: 1, maxLength: 64 }),
    disk_bytes: fc.constant(2 ** 32 * BLOCK_BYTES),
    epoch: fc.maxSafeNat(),
    generation: fc.maxSafeNat(),
    attempt: fc.nat({ max: 2 ** 32 - 1 }),
    part: fc.nat({ max: 1000 }),
    last: fc.boolean(),
  });
  const entry = fc.record({
    block: fc.nat({ max: 2 ** 32 - 1 }),
    kind: fc.constantFrom(...Object.values(FRAME_KIND)),
    length: fc.integer({ min: 1, max: BLOCK_BYTES - 1 }),
    crc32: fc.nat({ max: 2 ** 32 - 1 }),
    hash: fc.uint8Array({ minLength: 16, maxLength: 16 }),
  });
  const entries = fc.uniqueArray(entry, { maxLength: 40, selector: ({ block }) => block });
  fc.assert(
    fc.property(identity, entries, (who, drawn) => {
      const given = drawn.map(({ length, ...rest }) => {
        const stored_bytes =
          rest.kind === FRAME_KIND.raw ? BLOCK_BYTES : rest.kind === FRAME_KIND.zero ? 0 : length;
        return { ...rest, stored_bytes };
      });
      const frames_bytes = given.reduce((sum, { stored_bytes }) => sum + stored_bytes, 0);
      const tail = encodeTail(who, given);
      const directory = decodeDirectory('k', frames_bytes + tail.length, tail);
      assert.deepEqual(directory.identity, { ...who });
      let offset = 0;
      assert.equal(directory.entries.length, given.length);
      for (const [i, found] of directory.entries.entries()) {
        const { hash, ...rest } = present(given[i], 'an entry');
        assert.deepEqual({ ...found, hash: undefined }, { ...rest, offset, hash: undefined });
        assert.deepEqual([...found.hash], [...hash]);
        offset += rest.stored_bytes;
      }
    }),
  );
});

test('every single flipped bit of a segment is detected', () => {
  verifySegment(KEY, SMALL);
  for (let bit = 0; bit < SMALL.length * 8; bit++) {
    const rotten = Buffer.from(SMALL);
    rotten[bit >>> 3] = (rotten[bit >>> 3] ?? 0) ^ (1 << (bit & 7));
    assert.throws(() => verifySegment(KEY, rotten), SegmentCorruptError, `bit ${bit}`);
  }
});

test('a segment cut at any byte is detected, from its directory alone', () => {
  for (let length = 0; length < SMALL.length; length++) {
    const cut = SMALL.subarray(0, length);
    assert.throws(() => decodeDirectory(KEY, length, cut), SegmentCorruptError);
  }
  const grown = Buffer.concat([SMALL, Buffer.from([0])]);
  assert.throws(() => decodeDirectory(KEY, grown.length, grown), SegmentCorruptError);
});

test('a corrupt directory names the key and what is wrong', () => {
  const rotten = Buffer.from(SMALL);
  const at = rotten.length - TRAILER_BYTES - ENTRY_BYTES;
  rotten[at] = 1;
  assert.throws(
    () => decodeDirectory(KEY, rotten.length, rotten),
    (error) => error instanceof SegmentCorruptError && error.key === KEY && /checksum/.test(error.message),
  );
});

test('a segment in the place of another is detected by its key', () => {
  for (const other of [{ epoch: 4 }, { generation: 18 }, { attempt: 1 }, { part: 1 }]) {
    const key = segmentKey('disks/x', { ...IDENTITY, ...other });
    const { identity } = decodeDirectory(key, SMALL.length, SMALL);
    assert.throws(() => verifyKey(key, identity), SegmentCorruptError);
  }
});

test('a segment without entries is legal', () => {
  const empty = build(new Map());
  assert.equal(empty.length, TRAILER_BYTES);
  assert.deepEqual(verifySegment(KEY, empty).entries, []);
});

test('a block past the end of the disk is refused', () => {
  const rotten = build(new Map([[1024, text(1)]]));
  assert.throws(() => decodeDirectory(KEY, rotten.length, rotten), /block 1024: is past the end of the disk/);
});

test('arbitrary bytes never decode and never fail otherwise', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 2_000 }), fc.boolean(), (bytes, with_magic) => {
      const object = Buffer.from(bytes);
      if (with_magic && object.length >= TRAILER_BYTES) {
        object.write('BERTHSEG', object.length - TRAILER_BYTES, 'latin1');
        object.writeUInt16LE(1, object.length - TRAILER_BYTES + 8);
      }
      assert.throws(() => decodeDirectory('k', object.length, object), SegmentCorruptError);
    }),
  );
});
