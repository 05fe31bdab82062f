import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Turns } from './turns.ts';

test('at most so many of one party work at a time, in order, and no other party waits for them', async () => {
  const turns = new Turns<string>(2);
  const begun: string[] = [];
  const ends: (() => void)[] = [];
  const work = (name: string) => () => {
    begun.push(name);
    return new Promise<void>((resolve) => ends.push(resolve));
  };
  const all = ['a1', 'a2', 'a3', 'a4', 'b1'].map((name) => turns.take(name.charAt(0), work(name)));
  const settled = () => new Promise((resolve) => setImmediate(resolve));
  await settled();
  assert.deepEqual(begun, ['a1', 'a2', 'b1']);
  ends[0]?.();
  await settled();
  assert.deepEqual(begun, ['a1', 'a2', 'b1', 'a3']);
  for (const end of ends) end();
  await settled();
  for (const end of ends) end();
  await Promise.all(all);
  assert.deepEqual(begun, ['a1', 'a2', 'b1', 'a3', 'a4']);
});

test('work that fails makes room for the next', async () => {
  const turns = new Turns<string>(1);
  const failing = turns.take('a', () => Promise.reject(new Error('failed')));
  const next = turns.take('a', async () => 'done');
  await assert.rejects(failing, /failed/);
  assert.equal(await next, 'done');
});
