import assert from 'node:assert/strict';
import { test } from 'node:test';
import { nextRestart } from './restart-policy.ts';

const FAILED_AT = new Date('2026-01-01T12:00:00Z');
/** A start by itself, so many seconds before the failure. */
const before = (seconds: number) => new Date(FAILED_AT.getTime() - seconds * 1_000);

function delayOf(restarted_at: readonly Date[]): number | null {
  const next = nextRestart(FAILED_AT, restarted_at);
  return next && (next.getTime() - FAILED_AT.getTime()) / 1_000;
}

test('the delay before a start by itself doubles, and the sixth failure in ten minutes is final', () => {
  const starts = [10, 20, 40, 80, 599].map(before);
  const delays = [0, 1, 2, 3, 4, 5].map((count) => delayOf(starts.slice(0, count)));
  assert.deepEqual(delays, [1, 2, 4, 8, 16, null]);
});

test('starts of more than ten minutes before the failure do not count', () => {
  assert.equal(delayOf([600, 601, 602, 10_000, 10_001, 10_002].map(before)), 1);
});
