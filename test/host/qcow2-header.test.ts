import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { overlayProblem, parseQcow2Header } from '../../src/host/disk/overlay-files.ts';
import { type HeadChange, qcow2Head } from '../support/qcow2-head.ts';

const GIB = 2 ** 30;
const problemOf = (head: Buffer) => overlayProblem(parseQcow2Header(head));

test('a new overlay is accepted, also while QEMU has it open', () => {
  assert.equal(problemOf(qcow2Head(GIB)), null);
  assert.equal(problemOf(qcow2Head(GIB, { features: 0b10001n })), null);
  assert.equal(parseQcow2Header(qcow2Head(3 * GIB))?.size_bytes, 3 * GIB);
});

test('a reference to another file, or a foreign header, has a named problem', () => {
  const cases: [RegExp, HeadChange][] = [
    [/backing file/, { backing_file: '/etc/shadow' }],
    [/backing file/, { backing_file: '' }],
    [/data file/, { features: 0b10100n }],
    [/encrypted/, { encryption: 2 }],
    [/snapshots/, { snapshots: 1 }],
    [/version 2/, { version: 2 }],
    [/damaged/, { features: 0b10010n }],
    [/features/, { features: 1n << 63n }],
  ];
  for (const [expected, change] of cases) assert.match(problemOf(qcow2Head(GIB, change)) ?? '', expected);
  for (const size of [0, 1000]) assert.match(problemOf(qcow2Head(size)) ?? '', /size/);
  const huge = qcow2Head(GIB);
  huge.writeBigUInt64BE(2n ** 63n, 24);
  assert.match(problemOf(huge) ?? '', /size/);
});

test('any bytes are accepted or refused, and none that name a backing or data file are accepted', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 112 }), fc.nat(112), (bytes, at) => {
      const head = qcow2Head(GIB).subarray(0, 112);
      head.set(bytes.subarray(0, 112 - at), at);
      if (problemOf(head) !== null) return;
      assert.equal(head.readBigUInt64BE(8), 0n);
      assert.equal(head.readBigUInt64BE(72) & 4n, 0n);
    }),
  );
  assert.match(problemOf(Buffer.alloc(0)) ?? '', /no qcow2 header/);
  assert.match(problemOf(qcow2Head(GIB).subarray(0, 100)) ?? '', /no qcow2 header/);
});
