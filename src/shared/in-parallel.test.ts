import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inParallel } from './in-parallel.ts';

test('every item is processed once, within the concurrency limit', async () => {
  const done: number[] = [];
  let now = 0;
  let most = 0;
  await inParallel([1, 2, 3, 4, 5, 6, 7], 3, async (item) => {
    now += 1;
    most = Math.max(most, now);
    await new Promise(setImmediate);
    now -= 1;
    done.push(item);
  });
  assert.deepEqual([done.sort(), most], [[1, 2, 3, 4, 5, 6, 7], 3]);
  await inParallel([], 3, () => assert.fail());
});

test('after a failure nothing more begins, and it is thrown once all work has ended', async () => {
  const [begun, ended]: [number[], number[]] = [[], []];
  const work = async (item: number): Promise<void> => {
    begun.push(item);
    await new Promise(setImmediate);
    if (item === 1) throw new Error('the first');
    await new Promise(setImmediate);
    ended.push(item);
  };
  await assert.rejects(inParallel([1, 2, 3, 4, 5, 6], 2, work), /the first/);
  assert.deepEqual([begun, ended], [[1, 2], [2]]);
});
