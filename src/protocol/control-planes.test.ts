import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ControlPlanePlaces } from './control-planes.ts';
import type { ListedControlPlane } from './ingress-types.ts';

const FINGERPRINT = Array(32).fill('AB').join(':');
const at = (n: number): ListedControlPlane => ({ url: `https://10.0.0.${n}:7500`, fingerprint: FINGERPRINT });
const given = { address: at(1).url, token: 'x', fingerprint: FINGERPRINT };

test('a client stays with one control plane until that fails, and goes round', () => {
  const places = new ControlPlanePlaces({ ...given, known: [at(2), at(3)] }, () => undefined);
  const [first, used] = [places.current, [places.current.origin]];
  const { left } = first;
  for (let n = 0; n < 3; n++) {
    places.leave(places.current);
    used.push(places.current.origin);
  }
  assert.deepEqual(
    used,
    [1, 2, 3, 1].map((n) => at(n).url),
  );
  assert(left.signal.aborted && !first.left.signal.aborted, 'polls there ended, and new ones may begin');
});

test('calls that fail together leave one place once', () => {
  const places = new ControlPlanePlaces({ ...given, known: [at(2), at(3)] }, () => undefined);
  const first = places.current;
  places.leave(first);
  places.leave(first);
  assert.equal(places.current.origin, at(2).url);
});

test('the given one stays known, also when others no longer list it; what is learned is reported once', () => {
  const reported: (readonly ListedControlPlane[])[] = [];
  const places = new ControlPlanePlaces(given, (known) => void reported.push(known));
  places.learn([]);
  places.learn([at(1)]);
  assert.deepEqual([places.count, reported], [1, []]);
  places.learn([at(1), at(2)]);
  places.learn([at(2), at(1)]);
  places.leave(places.current);
  const used = places.current;
  places.learn([at(2), at(3)]);
  assert.equal(places.current, used, 'it stays where it is');
  assert.equal(places.count, 3);
  places.learn([at(3)]);
  assert.deepEqual([places.current.origin, used.left.signal.aborted], [at(1).url, true]);
  assert.deepEqual(reported, [[at(1), at(2)], [at(2), at(3)], [at(3)]]);
});

const RENEWED = FINGERPRINT.replaceAll('AB', 'CD');
const renewed = (n: number): ListedControlPlane => ({ ...at(n), fingerprint: RENEWED });
const shown = (places: ControlPlanePlaces) =>
  Array.from({ length: places.count }, () => {
    const { origin, fingerprint } = places.current;
    places.leave(places.current);
    return [origin, fingerprint];
  });

test('once the given certificate is listed no longer, it is trusted nowhere, also at the next start', () => {
  let reported: readonly ListedControlPlane[] = [];
  const places = new ControlPlanePlaces(given, (known) => {
    reported = known;
  });
  places.learn([at(1), renewed(1)]);
  assert.deepEqual(shown(places), [
    [at(1).url, FINGERPRINT],
    [at(1).url, RENEWED],
  ]);
  places.learn([renewed(1)]);
  assert.deepEqual(shown(places), [[at(1).url, RENEWED]]);
  const next = new ControlPlanePlaces({ ...given, known: reported }, () => undefined);
  assert.deepEqual(shown(next), [[at(1).url, RENEWED]]);
});

test('a balancer at the given address may lead to either certificate, and in the end to the new one', () => {
  const balanced = { ...given, address: 'https://balancer:7500' };
  const places = new ControlPlanePlaces(balanced, () => undefined);
  places.learn([at(1), renewed(2), renewed(1)]);
  assert.deepEqual(shown(places), [
    [balanced.address, FINGERPRINT],
    [at(1).url, FINGERPRINT],
    [at(2).url, RENEWED],
    [at(1).url, RENEWED],
    [balanced.address, RENEWED],
  ]);
  places.learn([renewed(1), renewed(2)]);
  assert.deepEqual(shown(places), [
    [balanced.address, RENEWED],
    [at(1).url, RENEWED],
    [at(2).url, RENEWED],
  ]);
});
