import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ago, bytes, duration, mebibytes, plural } from './format.ts';

test('bytes have the unit that keeps them short, and below 100 a digit behind the point, unless it is 0', () => {
  assert.deepEqual([0, 1023, 1024, 1536, 65_536, 150 * 1024, 5 * 2 ** 30].map(bytes), [
    ...['0 B', '1023 B', '1 KiB', '1.5 KiB', '64 KiB', '150 KiB', '5 GiB'],
  ]);
  assert.equal(mebibytes(512), '512 MiB');
  assert.equal(bytes(2 ** 60), '1048576 TiB');
});

test('a time is shown relative to now, in its largest whole unit', () => {
  const now_ms = Date.parse('2026-01-01T12:00:00.000Z');
  const told = (seconds: number) => ago(new Date(now_ms + seconds * 1000).toISOString(), now_ms);
  assert.equal(told(-2), 'just now');
  assert.equal(told(-59), '59 s ago');
  assert.equal(told(-120), '2 min ago');
  assert.equal(told(-3 * 3600), '3 h ago');
  assert.equal(told(-86_400), 'yesterday');
  assert.equal(told(90), 'in 2 min');
  assert.equal(told(7 * 86_400), 'in 7 days');
  assert.equal(told(90 * 86_400), 'in 3 months');
  assert.equal(ago(null, now_ms), 'never');
});

test('a duration has at most two units', () => {
  assert.deepEqual([45, 60, 90, 3600, 5400, 90_000].map(duration), [
    ...['45 s', '1 min', '1 min 30 s', '1 h', '1 h 30 min', '1 d 1 h'],
  ]);
  assert.equal(plural(1, 'segment'), '1 segment');
  assert.equal(plural(0, 'segment'), '0 segments');
});
