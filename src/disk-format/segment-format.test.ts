import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { present } from '../shared/assert.ts';
import { newBlocks } from './block-buffers.ts';
import { packBatch } from './compress-batch.ts';
import {
  type AttemptKey,
  type DataKey,
  KeyRing,
  newAttemptKey,
  newDataKey,
  PURPOSE,
} from './frame-cipher.ts';
import { hashBlock } from './frame-codec.ts';
import {
  BLOCK_BYTES,
  decodeDirectory,
  ENTRY_BYTES,
  encodeTail,
  FRAME_KIND,
  type FrameKind,
  type NewEntry,
  SegmentCorruptError,
  type SegmentIdentity,
  segmentKey,
  TRAILER_BYTES,
  verifyKey,
} from './segment-format.ts';
import { verifySegment } from './verify-disk.ts';

const PLAIN: SegmentIdentity = {
  disk_id: 'inst_01hzy0000000000000000000aa',
  disk_bytes: 1024 * BLOCK_BYTES,
  epoch: 3,
  generation: 17,
  attempt: 0x00abcdef,
  part: 0,
  last: true,
  encryption: null,
};
const KEY = segmentKey('disks/x', PLAIN);
const DATA_KEY = newDataKey();
const KEYS = new KeyRing([newDataKey(), DATA_KEY]);

interface Segment {
  readonly identity: SegmentIdentity;
  readonly frames: readonly Uint8Array[];
  readonly entries: NewEntry[];
  readonly key: AttemptKey | null;
}

/** Packs blocks into frames and entries, like a flush. */
function pack(blocks: ReadonlyMap<number, Buffer>, plain: SegmentIdentity, key: AttemptKey | null): Segment {
  const identity = { ...plain, encryption: key?.encryption ?? null };
  const numbers = Uint32Array.from(blocks.keys());
  const together = newBlocks(blocks.size);
  together.set(Buffer.concat([...blocks.values()]));
  const packed = packBatch({
    blocks: together,
    known: new Uint8Array(numbers.length * 16),
    known_present: new Uint8Array(numbers.length),
    sealing: key ? { key: key.key, home: identity, numbers, first_counter: 7 } : undefined,
  });
  const frames: Uint8Array[] = [];
  let at = 0;
  const entries = [...numbers].map((block, i) => {
    const stored_bytes = packed.stored_bytes[i] ?? 0;
    frames.push(packed.frames.subarray(at, at + stored_bytes));
    at += stored_bytes;
    const hash = packed.hashes.slice(i * 16, (i + 1) * 16);
    return { block, kind: packed.kinds[i] as FrameKind, stored_bytes, mark: packed.marks[i] ?? 0, hash };
  });
  return { identity, frames, entries, key };
}

function build({ identity, frames, entries, key }: Segment): Buffer {
  return Buffer.concat([...frames, encodeTail(identity, entries, key)]);
}

const attemptKey = (data_key: DataKey = DATA_KEY): AttemptKey => newAttemptKey(data_key, PURPOSE.segment);

function text(seed: number): Buffer {
  return Buffer.alloc(BLOCK_BYTES, `line ${seed}\n`);
}

const noise = (): Buffer => randomBytes(BLOCK_BYTES);

const CONTENT = new Map([
  [5, text(5)],
  [2, Buffer.alloc(BLOCK_BYTES)],
  [1023, text(9)],
]);
const KINDS = [
  { name: 'plain', key: () => null },
  { name: 'encrypted', key: () => attemptKey() },
];

test('decoding returns the encoded identity, entries and their order', () => {
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
    mark: fc.nat({ max: 2 ** 32 - 1 }),
    hash: fc.uint8Array({ minLength: 16, maxLength: 16 }),
  });
  const entries = fc.uniqueArray(entry, { maxLength: 40, selector: ({ block }) => block });
  fc.assert(
    fc.property(identity, entries, fc.boolean(), (drawn_identity, drawn, encrypted) => {
      const key = encrypted ? attemptKey() : null;
      const who = { ...drawn_identity, encryption: key?.encryption ?? null };
      const tag = encrypted ? 16 : 0;
      const given = drawn.map(({ length, ...rest }) => {
        const stored_bytes = { 0: BLOCK_BYTES + tag, 1: length + tag, 2: 0 }[rest.kind];
        return { ...rest, stored_bytes };
      });
      const frames_bytes = given.reduce((sum, { stored_bytes }) => sum + stored_bytes, 0);
      const tail = encodeTail(who, given, key);
      const directory = decodeDirectory('k', frames_bytes + tail.length, tail, KEYS);
      const { encryption, ...rest_of_identity } = directory.identity;
      assert.deepEqual(rest_of_identity, { ...drawn_identity });
      assert.equal(encryption?.key_id, key?.encryption.key_id);
      assert.deepEqual([...(encryption?.salt ?? [])], [...(key?.encryption.salt ?? [])]);
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

for (const { name, key } of KINDS) {
  describe(`a segment, ${name}`, () => {
    const object = build(pack(CONTENT, PLAIN, key()));

    test('is detected as corrupt with any single bit flipped', () => {
      assert.equal(verifySegment(KEY, object, KEYS).entries.length, 3);
      for (let bit = 0; bit < object.length * 8; bit++) {
        const rotten = Buffer.from(object);
        rotten[bit >>> 3] = (rotten[bit >>> 3] ?? 0) ^ (1 << (bit & 7));
        assert.throws(() => verifySegment(KEY, rotten, KEYS), SegmentCorruptError, `bit ${bit}`);
      }
    });

    test('is detected as cut at any byte, from its directory alone', () => {
      for (let length = 0; length < object.length; length++) {
        const cut = object.subarray(0, length);
        assert.throws(() => decodeDirectory(KEY, length, cut, KEYS), SegmentCorruptError);
      }
      const grown = Buffer.concat([object, Buffer.from([0])]);
      assert.throws(() => decodeDirectory(KEY, grown.length, grown, KEYS), SegmentCorruptError);
    });

    test('with a corrupt directory is refused with its key and the problem', () => {
      const rotten = Buffer.from(object);
      const at = rotten.length - TRAILER_BYTES - ENTRY_BYTES;
      rotten[at] = (rotten[at] ?? 0) ^ 1;
      assert.throws(
        () => decodeDirectory(KEY, rotten.length, rotten, KEYS),
        (error) =>
          error instanceof SegmentCorruptError && error.key === KEY && /checksum/.test(error.message),
      );
    });

    test('in place of another segment is detected by its key', () => {
      for (const other of [{ epoch: 4 }, { generation: 18 }, { attempt: 1 }, { part: 1 }]) {
        const place = segmentKey('disks/x', { ...PLAIN, ...other });
        const { identity } = decodeDirectory(place, object.length, object, KEYS);
        assert.throws(() => verifyKey(place, identity), SegmentCorruptError);
      }
    });

    test('without entries is valid', () => {
      const empty = build(pack(new Map(), PLAIN, key()));
      assert.equal(empty.length, TRAILER_BYTES);
      assert.deepEqual(verifySegment(KEY, empty, KEYS).entries, []);
    });

    test('with a block past the end of the disk is refused', () => {
      const rotten = build(pack(new Map([[1024, text(1)]]), PLAIN, key()));
      assert.throws(
        () => decodeDirectory(KEY, rotten.length, rotten, KEYS),
        /block 1024: is past the end of the disk/,
      );
    });
  });
}

describe('an encrypted segment', () => {
  const named = (pattern: RegExp) => (error: unknown) =>
    error instanceof SegmentCorruptError && pattern.test(error.problem);

  test('hides content, hashes and block numbers', () => {
    const secret = Buffer.alloc(BLOCK_BYTES);
    for (let at = 0; at < BLOCK_BYTES; at += 4) secret.writeUInt32LE(Math.imul(at, 0x9e3779b1) >>> 0, at);
    const content = new Map([[0x51525354, secret]]);
    const wide = { ...PLAIN, disk_bytes: 2 ** 32 * BLOCK_BYTES };
    const marks = (object: Buffer): boolean[] => [
      object.includes(secret.subarray(1_000, 1_016)),
      object.includes(Buffer.from(hashBlock(secret).subarray(0, 8))),
      object.includes(Buffer.from([0x54, 0x53, 0x52, 0x51])),
    ];
    assert.deepEqual(marks(build(pack(content, wide, null))), [true, true, true]);
    assert.deepEqual(marks(build(pack(content, wide, attemptKey()))), [false, false, false]);
  });

  test('does not decrypt without its key, nor with another key of the same id', () => {
    const object = build(pack(CONTENT, PLAIN, attemptKey()));
    const other = { key_id: DATA_KEY.key_id, key: newDataKey().key };
    assert.throws(
      () => verifySegment(KEY, object, KeyRing.none),
      named(/a key that the disk does not have \(dk_/),
    );
    assert.throws(
      () => verifySegment(KEY, object, new KeyRing([other])),
      named(/does not decrypt with its key/),
    );
  });

  /** An attacker who can write the store but has no key can correct the checksum. */
  function mended(change: (object: Buffer, trailer_at: number) => void, from: Segment): Buffer {
    const object = build(from);
    const trailer_at = object.length - TRAILER_BYTES;
    change(object, trailer_at);
    const start = trailer_at - from.entries.length * ENTRY_BYTES;
    const digest = createHash('sha256')
      .update(object.subarray(start, object.length - 32))
      .digest();
    digest.copy(object, object.length - 32);
    return object;
  }

  test('with a changed trailer or directory does not decrypt, even with a corrected checksum', () => {
    const segment = pack(CONTENT, PLAIN, attemptKey());
    verifySegment(
      KEY,
      mended(() => {}, segment),
      KEYS,
    );
    // flags, attempt, epoch, generation, size and id of the disk, salt, tag
    for (const at of [10, 20, 24, 32, 46, 64, 150, 180]) {
      const object = mended((bytes, trailer) => {
        bytes[trailer + at] = (bytes[trailer + at] ?? 0) ^ 1;
      }, segment);
      assert.throws(() => verifySegment('another-shape', object, KEYS), SegmentCorruptError, `byte ${at}`);
    }
    for (let at = 1; at <= 3 * ENTRY_BYTES; at++) {
      const object = mended((bytes, trailer) => {
        bytes[trailer - at] = (bytes[trailer - at] ?? 0) ^ 1;
      }, segment);
      assert.throws(() => verifySegment(KEY, object, KEYS), named(/directory does not decrypt with its key/));
    }
  });

  test('refuses a frame of another block, generation, epoch, disk, attempt or kind', () => {
    const key = attemptKey();
    const mine = pack(new Map([[5, text(5)]]), PLAIN, key);
    const replayed = (from: Segment, entry: Partial<NewEntry> = {}): void => {
      const donor = present(from.entries[0], 'the entry of a frame');
      // The worst case: the directory has the frame's own hash and counter.
      const entries = [{ ...donor, block: 5, ...entry }];
      const object = build({ ...mine, frames: from.frames, entries });
      verifySegment(KEY, object, KEYS);
    };
    replayed(mine);
    const others = {
      block: pack(new Map([[6, text(6)]]), PLAIN, key),
      generation: pack(new Map([[5, text(6)]]), { ...PLAIN, generation: 16 }, key),
      epoch: pack(new Map([[5, text(6)]]), { ...PLAIN, epoch: 2 }, key),
      disk: pack(new Map([[5, text(6)]]), { ...PLAIN, disk_id: 'inst_other' }, key),
      attempt: pack(new Map([[5, text(6)]]), PLAIN, attemptKey()),
    };
    for (const [what, other] of Object.entries(others)) {
      assert.throws(() => replayed(other), named(/was not encrypted for this block/), what);
    }
    assert.throws(() => replayed(mine, { mark: 8 }), named(/was not encrypted for this block/));
    const raw = pack(new Map([[5, noise()]]), PLAIN, key);
    assert.equal(raw.entries[0]?.kind, FRAME_KIND.raw);
    replayed(raw);
    const shorter = { kind: FRAME_KIND.zstd, stored_bytes: BLOCK_BYTES };
    const cut = { ...raw, frames: [present(raw.frames[0], 'a frame').subarray(16)] };
    assert.throws(() => replayed(cut, shorter), named(/was not encrypted for this block/));
  });

  test('is refused if marked as not encrypted; so is a plain one that names a key', () => {
    const bare = mended(
      (bytes, trailer) => bytes.writeUInt16LE(1, trailer + 10),
      pack(CONTENT, PLAIN, attemptKey()),
    );
    assert.throws(() => verifySegment(KEY, bare, KEYS), named(/names a key/));
  });

  test('has different bytes each time', () => {
    const [one, two] = [1, 2].map(() => build(pack(CONTENT, PLAIN, attemptKey())));
    assert.equal(one?.length, two?.length);
    assert.notDeepEqual(one?.subarray(0, 64), two?.subarray(0, 64));
  });
});

test('arbitrary bytes never decode, and fail with SegmentCorruptError only', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 2_000 }), fc.boolean(), (bytes, with_magic) => {
      const object = Buffer.from(bytes);
      if (with_magic && object.length >= TRAILER_BYTES) {
        object.write('BERTHSEG', object.length - TRAILER_BYTES, 'latin1');
        object.writeUInt16LE(2, object.length - TRAILER_BYTES + 8);
      }
      assert.throws(() => decodeDirectory('k', object.length, object, KEYS), SegmentCorruptError);
    }),
  );
});
