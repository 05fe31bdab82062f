import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { Turns } from './turns.ts';

test('a thousand requests of one instance begin in many turns, in their order; one of another begins at once', async () => {
  const turns = new Turns();
  const begun: number[] = [];
  const all = Array.from({ length: 1_000 }, async (_, at) => {
    await turns.await('a');
    begun.push(at);
  });
  assert.equal(turns.await('b'), null);
  const before = begun.length;
  await turn();
  assert.ok(begun.length - before < 100, `${begun.length - before} in a turn`);
  assert.equal(turns.await('b'), null);
  await Promise.all(all);
  assert.deepEqual(
    begun,
    begun.toSorted((one, other) => one - other),
  );
  assert.equal(begun.length, 1_000);
});
