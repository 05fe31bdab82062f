import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BootSlots } from './boot-slots.ts';

const never = new AbortController().signal;

/** Takes a slot; tells by `order` when it was given. */
function taker(slots: BootSlots, order: string[]) {
  return async (name: string, signal = never) => {
    const release = await slots.take(signal);
    order.push(name);
    return release;
  };
}
const settled = () => new Promise((resolve) => setImmediate(resolve));

test('boots up to the limit run at once, the others in the order of their calls', async () => {
  const order: string[] = [];
  const take = taker(new BootSlots(2), order);
  const [a] = await Promise.all([take('a'), take('b')]);
  const c = take('c');
  const d = take('d');
  await settled();
  assert.deepEqual(order, ['a', 'b']);
  a();
  a();
  (await c)();
  await d;
  assert.deepEqual(order, ['a', 'b', 'c', 'd']);
});

test('an aborted wait leaves the slot to the next', async () => {
  const order: string[] = [];
  const take = taker(new BootSlots(1), order);
  const a = await take('a');
  const gone = new AbortController();
  const b = take('b', gone.signal);
  const c = take('c');
  gone.abort(new Error('no longer wanted'));
  await assert.rejects(b, /no longer wanted/);
  a();
  (await c)();
  await take('d');
  assert.deepEqual(order, ['a', 'c', 'd']);
  await assert.rejects(take('e', gone.signal), /no longer wanted/);
});

test('a boot that takes too long does not block others', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const order: string[] = [];
  const take = taker(new BootSlots(1), order);
  const a = await take('a');
  const b = take('b');
  t.mock.timers.tick(60_000);
  await b;
  a();
  assert.deepEqual(order, ['a', 'b']);
});

test('a background boot starts only while no guest boots, and blocks none', async () => {
  const slots = new BootSlots(2);
  const a = await slots.take(never);
  assert.equal(slots.takeIdle(), null);
  a();
  const idle = slots.takeIdle();
  assert(idle);
  assert.equal(slots.takeIdle(), null);
  (await slots.take(never))();
  idle();
  assert(slots.takeIdle());
});
