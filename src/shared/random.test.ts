import assert from 'node:assert/strict';
import { test } from 'node:test';
import { drawRandom } from './random.ts';

test('bytes are given out once, over many draws of different sizes', () => {
  const seen = new Set<string>();
  for (let n = 0; n < 2_000; n++) {
    const bytes = drawRandom(n % 2 === 0 ? 12 : 16);
    assert.equal(bytes.length, n % 2 === 0 ? 12 : 16);
    seen.add(bytes.subarray(0, 12).toString('hex'));
  }
  assert.equal(seen.size, 2_000);
});
