import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { describe, test } from 'node:test';
import { constants, zstdCompressSync, zstdDecompressSync } from 'node:zlib';
import { type Below, BlockCompressor, ONE_CHUNK_BYTES } from './frame-codec.ts';
import { BLOCK_BYTES } from './segment-format.ts';

const LEVEL_1 = { params: { [constants.ZSTD_c_compressionLevel]: 1 } };
const NOISE = randomBytes(BLOCK_BYTES);
const TEXT = Buffer.alloc(BLOCK_BYTES, 'some text ');
const MIXED = Buffer.concat([NOISE.subarray(0, BLOCK_BYTES / 2), TEXT.subarray(BLOCK_BYTES / 2)]);

describe('one compressor for all blocks', () => {
  test('compresses each block as zstd does alone, regardless of the blocks before it', () => {
    const compressor = new BlockCompressor();
    for (const block of [TEXT, NOISE, MIXED, MIXED, NOISE, TEXT]) {
      const frame = compressor.compress(block);
      assert(Buffer.from(frame).equals(zstdCompressSync(block, LEVEL_1)));
      assert(zstdDecompressSync(frame).equals(block));
    }
  });

  test('uses one buffer for all frames, with the Node.js of this project', () => {
    const compressor = new BlockCompressor();
    assert.equal(compressor.compress(TEXT).buffer, compressor.compress(NOISE).buffer);
  });

  const unlike: readonly (readonly [string, Below | null])[] = [
    ['is not there', null],
    ['does nothing', below(() => [ONE_CHUNK_BYTES, 0])],
    ['leaves some', below(() => [0, 1])],
    ['throws', below(() => assert.fail('another signature'))],
  ];
  for (const [what, other] of unlike) {
    test(`goes the documented way where what lies below it ${what}`, () => {
      const compressor = new BlockCompressor(other);
      for (const block of [TEXT, MIXED]) assert(zstdDecompressSync(compressor.compress(block)).equals(block));
    });
  }
});

function below(left: (...args: Parameters<Below['_handle']['writeSync']>) => readonly number[]): Below {
  const _writeState = new Uint32Array(2);
  const writeSync: Below['_handle']['writeSync'] = (...args) => _writeState.set(left(...args));
  return { _handle: { writeSync }, _writeState, destroyed: false };
}
