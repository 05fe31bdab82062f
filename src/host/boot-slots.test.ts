import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type InstanceId, newId } from '../shared/ids.ts';
import { BootSlots } from './boot-slots.ts';

const never = new AbortController().signal;

/** Takes a slot; tells by `order` when it was given. */
function taker(slots: BootSlots, order: string[]) {
  return async (name: string, signal = never) => {
    const release = await slots.take(name as InstanceId, signal);
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

test('guests that hang again and again do not keep others waiting, but get their turn', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  let now_ms = 0;
  const pass = (ms: number) => {
    now_ms += ms;
    t.mock.timers.tick(ms);
    return settled();
  };
  const order: string[] = [];
  const take = taker(new BootSlots(1, () => now_ms), order);
  for (const name of ['hangs 1', 'hangs 2']) {
    await take(name);
    await pass(60_000);
  }
  const quick = await take('quick');
  const hanging = [take('hangs 1'), take('hangs 2')];
  await pass(1_000);
  const other = take('other');
  quick();
  await settled();
  assert.deepEqual(order.slice(2), ['quick', 'other']);
  await pass(300_000);
  const late = take('late');
  (await other)();
  await settled();
  await pass(60_000);
  await Promise.all([...hanging, pass(60_000)]);
  await late;
  assert.deepEqual(order.slice(4), ['hangs 1', 'hangs 2', 'late']);
});

test('a background boot starts only while no guest boots, and blocks none', async () => {
  const slots = new BootSlots(2);
  const a = await slots.take(newId('inst'), never);
  assert.equal(slots.takeIdle(), null);
  a();
  const idle = slots.takeIdle();
  assert(idle);
  assert.equal(slots.takeIdle(), null);
  (await slots.take(newId('inst'), never))();
  idle();
  assert(slots.takeIdle());
});
