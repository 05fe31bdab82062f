import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inParallel, Semaphore, Signal } from './concurrency.ts';

test('permits are granted in the order of the calls, without the callers that left', async () => {
  const semaphore = new Semaphore(1);
  await semaphore.acquire();
  const order: string[] = [];
  const gone = new AbortController();
  const first = semaphore.acquire(gone.signal);
  const second = semaphore.acquire().then(() => order.push('second'));
  const third = semaphore.acquire().then(() => order.push('third'));
  gone.abort(new Error('gone'));
  await assert.rejects(first, /gone/);
  semaphore.release();
  await second;
  assert.deepEqual(order, ['second']);
  semaphore.release();
  await third;
  assert.equal(semaphore.isIdle, false);
  semaphore.release();
  assert.equal(semaphore.isIdle, true);
  await semaphore.acquire();
});

test('an aborted signal gets no permit', async () => {
  const semaphore = new Semaphore(1);
  await assert.rejects(semaphore.acquire(AbortSignal.abort(new Error('gone'))), /gone/);
  assert.equal(semaphore.isIdle, true);
});

test('a notification wakes all that wait, and calls all that subscribed until they unsubscribe', async () => {
  const signal = new Signal();
  const called: string[] = [];
  const waiting = [
    signal.wait().then(() => called.push('one')),
    signal.wait().then(() => called.push('two')),
  ];
  const unsubscribe = signal.subscribe(() => called.push('listener'));
  signal.notify();
  await Promise.all(waiting);
  assert.deepEqual(called, ['listener', 'one', 'two']);
  unsubscribe();
  signal.notify();
  assert.equal(called.length, 3);
});

test('a notification between a look and its wait is not missed', async () => {
  const signal = new Signal();
  const since = signal.count;
  signal.notify();
  await signal.wait({ since });
});

test('a wait ends when its signal aborts, and at once when it has aborted', async () => {
  const signal = new Signal();
  const over = new AbortController();
  const waiting = signal.wait({ signal: over.signal });
  over.abort();
  await waiting;
  await signal.wait({ signal: over.signal });
});

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
