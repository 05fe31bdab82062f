import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseTime } from './clock.ts';

test('a time of any offset and either case is taken, to the millisecond', () => {
  for (const [text, iso] of [
    ['2026-01-15T09:30:00Z', '2026-01-15T09:30:00.000Z'],
    ['2026-01-15t09:30:00.123456789z', '2026-01-15T09:30:00.123Z'],
    ['2026-01-15T00:30:00+02:00', '2026-01-14T22:30:00.000Z'],
    ['2028-02-29T23:59:59-00:30', '2028-03-01T00:29:59.000Z'],
  ] as const) {
    assert.equal(parseTime(text)?.toISOString(), iso, text);
  }
});

test('a time with an impossible day or hour is refused', () => {
  for (const text of [
    '2026-02-29T00:00:00Z',
    '2026-02-30T00:00:00Z',
    '2026-11-31T00:00:00Z',
    '2026-00-01T00:00:00Z',
    '2026-13-01T00:00:00Z',
    '2026-01-00T00:00:00Z',
    '2026-01-15T24:00:00Z',
    '2026-01-15T09:60:00Z',
    '2026-01-15T09:30:00',
    '2026-01-15',
    '1767225600',
    '',
  ]) {
    assert.equal(parseTime(text), null, text);
  }
});
