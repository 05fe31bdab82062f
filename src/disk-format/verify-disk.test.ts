import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BLOCK_BYTES } from './segment-format.ts';
import { spansOf } from './verify-disk.ts';

test('blocks are reported as byte spans in order, adjacent ones as one, none twice', () => {
  assert.deepEqual(spansOf([]), []);
  assert.deepEqual(spansOf([7, 3, 4, 3, 1]), [
    { offset: BLOCK_BYTES, length: BLOCK_BYTES },
    { offset: 3 * BLOCK_BYTES, length: 2 * BLOCK_BYTES },
    { offset: 7 * BLOCK_BYTES, length: BLOCK_BYTES },
  ]);
  // The last block of the largest disk.
  assert.deepEqual(spansOf([2 ** 32 - 1]), [{ offset: 2 ** 48 - BLOCK_BYTES, length: BLOCK_BYTES }]);
});
