import assert from 'node:assert/strict';
import { test } from 'node:test';
import { eachInTurn } from './run-tasks.ts';

async function tried(items: readonly number[], failing: readonly number[]): Promise<[number[], unknown]> {
  const seen: number[] = [];
  const work = async (item: number) => {
    seen.push(item);
    if (failing.includes(item)) throw new Error(`no ${item}`);
  };
  const problem = await eachInTurn(items, work).catch((error: unknown) => error);
  return [seen, problem instanceof AggregateError ? problem.errors.map(({ message }) => message) : problem];
}

test('an item that fails does not stop the next, and is reported', async () => {
  assert.deepEqual(await tried([1, 2, 3, 4], []), [[1, 2, 3, 4], undefined]);
  assert.deepEqual(await tried([1, 2, 3, 4], [1, 3, 4]), [
    [1, 2, 3, 4],
    ['no 1', 'no 3', 'no 4'],
  ]);
});

test('three failures in a row end the run', async () => {
  assert.deepEqual(await tried([1, 2, 3, 4, 5], [2, 3, 4]), [
    [1, 2, 3, 4],
    ['no 2', 'no 3', 'no 4'],
  ]);
});
