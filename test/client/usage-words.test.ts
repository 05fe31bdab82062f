/** Amounts of use, as the command line and the console show them. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { gibHoursText, hoursText } from '../../client/src/usage.ts';

test('a time has at most two units, and never sixty of one', () => {
  assert.deepEqual(
    [0, 0.4, 59.6, 90, 3599.7, 3600, 5400, 106_200, 359_990, 360_000, 2_592_000].map(hoursText),
    [
      '0 s',
      '0 s',
      '1 min',
      '1 min 30 s',
      '1 h',
      '1 h',
      '1 h 30 min',
      '29 h 30 min',
      '100 h',
      '100 h',
      '720 h',
    ],
  );
});

test('GiB h have two digits, and a smaller unit when there are few', () => {
  assert.deepEqual([0, 0.000003, 0.0000141, 0.05, 0.1, 1.5, 12.4].map(gibHoursText), [
    '0 GiB h',
    '3.15 KiB h',
    '0.014 MiB h',
    '0.05 GiB h',
    '0.10 GiB h',
    '1.50 GiB h',
    '12 GiB h',
  ]);
});
