import assert from 'node:assert/strict';
import { test } from 'node:test';
import { shortened } from './append.ts';

test('long values are replaced by their length, those beside them stay', () => {
  const labels = Object.fromEntries(Array.from({ length: 64 }, (_, at) => [`label-${at}`, 'x'.repeat(255)]));
  const length = JSON.stringify(labels).length;
  const data = {
    credential: 'ses_1',
    change: { name: 'web', labels, none: undefined },
    path: 'y'.repeat(3_000),
  };
  assert.deepEqual(shortened(data), {
    credential: 'ses_1',
    change: { name: 'web', labels: `(${length} characters)`, none: undefined },
    path: '(3002 characters)',
  });
});

test('short data stays as it is', () => {
  const data = { change: { labels: { team: 'a' }, egress_allow: ['a.test'], idle: null } };
  assert.deepEqual(shortened(data), data);
});
