import assert from 'node:assert/strict';
import { test } from 'node:test';
import { durationText } from '../../client/src/words.ts';
import { UsageError } from './command-error.ts';
import { durationOption, durationOrOff, parseDuration, timeOption } from './values.ts';

test('a duration has a unit, and an error about one without names the ways to write it', () => {
  const read = ['30s', '10m', '24h', '7d', '90s', '0'].map(parseDuration);
  assert.deepEqual(read, [30, 600, 86_400, 604_800, 90, 0]);
  assert.throws(() => parseDuration('90'), /^UsageError: 90 has no unit: write 90s, 90m, 90h or 90d$/);
  const expires = () => durationOption('expires', '90');
  assert.throws(expires, /^UsageError: --expires: 90 has no unit: write 90s, 90m, 90h or 90d$/);
  assert.throws(() => timeOption('since', '90'), /--since: 90 has no unit: write 90s, 90m, 90h or 90d$/);
  for (const text of ['', 'm', '1.5h', '-1m', '10 m', '1h30m', '10M', '1w', 'soon']) {
    assert.throws(() => parseDuration(text), UsageError, text);
  }
});

test('an option names itself when its duration cannot be read, and may be off', () => {
  assert.throws(
    () => durationOption('grace', 'soon'),
    /^UsageError: --grace takes a duration such as 30s, 10m, 24h or 7d, not soon$/,
  );
  assert.equal(durationOption('grace', undefined), undefined);
  assert.deepEqual([durationOrOff('idle-timeout', 'off'), durationOrOff('idle-timeout', '15m')], [null, 900]);
});

test('a duration is written in the largest unit that leaves no rest, and read back', () => {
  const seconds = [0, 45, 90, 900, 7_200, 86_400, 90_000];
  assert.deepEqual(seconds.map(durationText), ['0s', '45s', '90s', '15m', '2h', '1d', '25h']);
  assert.deepEqual(seconds.map(durationText).map(parseDuration), seconds);
});

test('a time is a duration before now, a date or a time', () => {
  const now_ms = Date.parse('2026-11-25T09:12:00Z');
  assert.equal(timeOption('since', '2h', now_ms), '2026-11-25T07:12:00.000Z');
  assert.equal(timeOption('since', '2026-11-24T00:00:00+01:00', now_ms), '2026-11-23T23:00:00.000Z');
  assert.equal(timeOption('since', '2026-11-24', now_ms), '2026-11-24T00:00:00.000Z');
  for (const text of ['yesterday', '24w', '2026-13-01']) {
    assert.throws(() => timeOption('since', text, now_ms), /--since takes a duration before now/, text);
  }
});
