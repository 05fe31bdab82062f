import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sparkLine } from './table.ts';

const LINE = { from_ms: 0, to_ms: 80, cells: 8 };

test('a bar stands for the mean of its part of the time, and a space for a part without a value', () => {
  const values = [
    { at_ms: 0, value: 0 },
    { at_ms: 21, value: 25 },
    { at_ms: 29, value: 75 },
    { at_ms: 79, value: 100 },
  ];
  assert.equal(sparkLine(values, LINE), '▁ ▅    █');
});

test('values of zero are lines on the ground, and what lies outside the time is left out', () => {
  assert.equal(sparkLine([{ at_ms: 5, value: 0 }], LINE), '▁       ');
  assert.equal(
    sparkLine(
      [
        { at_ms: 80, value: 9 },
        { at_ms: -1, value: 9 },
      ],
      LINE,
    ),
    '        ',
  );
});
