import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Semaphore } from './semaphore.ts';

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
