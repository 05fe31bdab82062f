import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Signal } from './signal.ts';

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
