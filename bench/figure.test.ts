import assert from 'node:assert/strict';
import { test } from 'node:test';
import { measured, median, quantile, table } from './figure.ts';

test('the median of an even number of values is the mean of the two in the middle', () => {
  assert.equal(median([4, 1, 3, 2]), 2.5);
  assert.equal(median([9, 1, 3]), 3);
});

test('a quantile is the value of the nearest rank', () => {
  const values = Array.from({ length: 100 }, (_, index) => 100 - index);
  assert.equal(quantile(values, 0.5), 50);
  assert.equal(quantile(values, 0.99), 99);
  assert.equal(quantile([7], 0.99), 7);
  assert.equal(quantile([8, 7], 0.5), 7);
});

test('a figure has exactly the promised fields, in their order, and the ratio of the two medians it shows', () => {
  const result = measured({
    bench: 'start',
    figure: 'ssh_banner',
    unit: 's',
    values: [3, 1.00049, 2],
    beside: 'bare QEMU',
    beside_values: [1.6, 1.2, 1.7],
    remark: 'as it was',
  });
  assert.equal(
    JSON.stringify(result.figure),
    '{"bench":"start","figure":"ssh_banner","value":2,"unit":"s","beside":"bare QEMU","beside_value":1.6,"ratio":1.25,"runs":3}',
  );
  assert.match(
    table([result]),
    /start\/ssh_banner +2 s +1–3 +1\.6 s +1\.2–1\.7 +1\.25 +3 +bare QEMU\n.*as it was$/s,
  );
});
