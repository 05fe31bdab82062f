import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fullDisk } from './full-disk.ts';

test('less than a tenth of free space is told with both numbers and the folder', () => {
  const space = { bsize: 4_096, blocks: 100 * 262_144 };
  assert.deepEqual(fullDisk('/data', { ...space, bavail: 10 * 262_144 }), []);
  const [weak] = fullDisk('/data', { ...space, bavail: 10 * 262_144 - 1 });
  assert.match(weak?.found ?? '', /^nearly full: 10\.0 of 100\.0 GiB are free at \/data;/);
});

test('a small file system is told in MiB', () => {
  const [weak] = fullDisk('/data', { bsize: 4_096, blocks: 2_560, bavail: 128 });
  assert.match(weak?.found ?? '', /^nearly full: 0\.5 of 10\.0 MiB are free at \/data;/);
});
