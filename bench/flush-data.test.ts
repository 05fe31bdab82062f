import assert from 'node:assert/strict';
import { test } from 'node:test';
import { zstdCompressSync } from 'node:zlib';
import { DATA_BYTES, type FlushData, randomData, textData } from './flush-data.ts';

const BLOCK_BYTES = 65_536;

function blockRatio(data: FlushData): number {
  let stored = 0;
  const chunk = data.chunks().next().value;
  assert.ok(chunk !== undefined);
  const blocks = 16;
  for (let i = 0; i < blocks; i++) {
    stored += zstdCompressSync(chunk.subarray(i * BLOCK_BYTES, (i + 1) * BLOCK_BYTES)).length;
  }
  return stored / (blocks * BLOCK_BYTES);
}

test('random data does not compress, text compresses to about half', () => {
  assert.ok(blockRatio(randomData()) > 0.99);
  const ratio = blockRatio(textData());
  assert.ok(ratio > 0.3 && ratio < 0.7, String(ratio));
});

test('both are as long as they should be', { timeout: 60_000 }, () => {
  for (const data of [randomData(), textData()]) {
    let bytes = 0;
    for (const chunk of data.chunks()) bytes += chunk.length;
    assert.equal(bytes, DATA_BYTES);
  }
});
