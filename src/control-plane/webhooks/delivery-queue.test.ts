import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { type InstanceId, newId } from '../../shared/ids.ts';
import { DeliveryQueue, type Queued } from './delivery-queue.ts';

const PARALLEL = { in_order: 4, retries: 2 };
const INSTANCES = [null, newId('inst'), newId('inst'), newId('inst')] as const;

interface Delivery extends Queued {
  readonly n: number;
}
const kinds = fc.array(fc.tuple(fc.nat({ max: 3 }), fc.boolean()), { maxLength: 60 });
const delivery = (n: number, instance_id: InstanceId | null, in_order: boolean): Delivery => ({
  id: newId('whd'),
  n,
  instance_id,
  in_order,
});

test('every delivery is sent once; of one instance one is in flight at a time, in order; each share keeps its limit', () => {
  fc.assert(
    fc.property(kinds, fc.infiniteStream(fc.nat({ max: 9 })), (all, picks) => {
      const queue = new DeliveryQueue<Delivery>();
      const given = all.map(([nth, in_order], n) => delivery(n, INSTANCES[nth] ?? null, in_order));
      for (const each of given) queue.add(each);
      const in_flight: Delivery[] = [];
      const sent: Delivery[] = [];
      for (;;) {
        for (let next = queue.next(PARALLEL); next; next = queue.next(PARALLEL)) {
          in_flight.push(next);
          sent.push(next);
        }
        const ordered = in_flight.filter((each) => each.in_order);
        assert.ok(
          ordered.length <= PARALLEL.in_order && in_flight.length - ordered.length <= PARALLEL.retries,
        );
        const busy = ordered.flatMap(({ instance_id }) => instance_id ?? []);
        assert.equal(new Set(busy).size, busy.length);
        assert.equal(queue.in_flight, in_flight.length);
        const [answered] = in_flight.splice((picks.next().value ?? 0) % (in_flight.length || 1), 1);
        if (!answered) break;
        queue.answered(answered);
        queue.release(answered.id);
      }
      assert.ok(queue.isEmpty);
      assert.deepEqual(new Set(sent), new Set(given));
      for (const instance_id of INSTANCES.slice(1)) {
        const numbers = sent
          .filter((each) => each.in_order && each.instance_id === instance_id)
          .map(({ n }) => n);
        assert.deepEqual(
          numbers,
          numbers.toSorted((a, b) => a - b),
        );
      }
    }),
  );
});

test('a delivery that is claimed is not added again until it is released', () => {
  const queue = new DeliveryQueue<Delivery>();
  const one = delivery(1, null, true);
  queue.add(one);
  queue.add({ ...one, in_order: false });
  assert.deepEqual(queue.claimed, { in_order: 1, retries: 0 });
  assert.equal(queue.next(PARALLEL), one);
  assert.equal(queue.canSend(PARALLEL), false);
  queue.answered(one);
  queue.add(one);
  assert.equal(queue.canSend(PARALLEL), false, 'its outcome is not recorded');
  queue.release(one.id);
  queue.add(one);
  assert.equal(queue.canSend(PARALLEL), true);
});

test('releasing unsent deliveries keeps those in flight', () => {
  const queue = new DeliveryQueue<Delivery>();
  const [, instance] = INSTANCES;
  const first = delivery(1, instance, true);
  for (const each of [
    first,
    delivery(2, instance, true),
    delivery(3, null, true),
    delivery(4, null, false),
  ]) {
    queue.add(each);
  }
  assert.equal(queue.next({ in_order: 1, retries: 0 }), first);
  queue.releaseUnsent();
  assert.deepEqual(queue.claimed, { in_order: 1, retries: 0 });
  queue.answered(first);
  queue.release(first.id);
  assert.ok(queue.isEmpty);
  assert.equal(queue.next(PARALLEL), undefined);
});
