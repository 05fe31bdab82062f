import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { nearest, type Point, say, segments, timeTicks, valueTicks } from './chart-scale.ts';

const MIB = 2 ** 20;
const HOUR_MS = 3_600_000;
const labels = (ticks: readonly { label: string }[]) => ticks.map(({ label }) => label);

describe('the ticks of values', () => {
  test('are whole, with their unit, and the scale reaches the largest value', () => {
    const of = (...given: Parameters<typeof valueTicks>) => labels(valueTicks(...given).ticks);
    assert.deepEqual(of(1, 'share', true), ['0 %', '25 %', '50 %', '75 %', '100 %']);
    assert.deepEqual(of(512 * MIB, 'bytes', true), ['0 B', '128 MiB', '256 MiB', '384 MiB', '512 MiB']);
    assert.deepEqual(of(2500, 'rate', false), ['0 B/s', '1 KiB/s', '2 KiB/s', '3 KiB/s']);
    assert.deepEqual(of(3.2, 'hours', false), ['0 s', '1 h', '2 h', '3 h', '4 h']);
    assert.deepEqual(of(0.4, 'hours', false), ['0 s', '6 min', '12 min', '18 min', '24 min']);
    assert.deepEqual(of(0, 'gib_hours', false), ['0 GiB h', '0.05 GiB h', '0.10 GiB h']);
    assert.deepEqual(
      of(1900, 'gib_hours', false),
      [0, 500, 1000, 1500, 2000].map((at) => `${at} GiB h`),
    );
    const least = ['0 B/s', '256 B/s', '512 B/s', '768 B/s', '1 KiB/s'];
    for (const most of [0, 300]) assert.deepEqual(of(most, 'rate', false), least);
  });
  test('number three to five, whatever the value, and none lies above the scale', () => {
    for (let most = 1.5; most < 2 ** 50; most *= 1.37) {
      for (const fixed of [true, false]) {
        const { top, ticks } = valueTicks(most, 'bytes', fixed);
        assert.ok(top >= most && ticks.every(({ at }) => at <= top), `${most}`);
        if (most >= 4) assert.ok(ticks.length >= 3 && ticks.length <= 5, `${most}: ${ticks.length}`);
      }
    }
  });
});

describe('the ticks of time', () => {
  const at = (hour: number, minute: number) => new Date(2026, 10, 25, hour, minute).getTime();
  test('are round local times, and a day begins with its date', () => {
    assert.deepEqual(labels(timeTicks(at(9, 7), at(10, 7), 4)), ['09:15', '09:30', '09:45', '10:00']);
    assert.deepEqual(labels(timeTicks(at(-15, 7), at(9, 7), 4)), ['12:00', '18:00', '25 Nov', '06:00']);
    assert.deepEqual(labels(timeTicks(at(-24 * 7, 0), at(9, 0), 4)), [
      '18 Nov',
      '20 Nov',
      '22 Nov',
      '24 Nov',
    ]);
  });
  test('are at most as many as there is room for, and never none', () => {
    for (const hours of [1, 6, 24, 7 * 24, 30 * 24, 365 * 24])
      for (const count of [3, 4, 6, 10]) {
        const ticks = timeTicks(at(9, 7) - hours * HOUR_MS, at(9, 7), count);
        assert.ok(ticks.length >= 1 && ticks.length <= count + 1, `${hours} h: ${ticks.length} of ${count}`);
      }
  });
});

describe('a line', () => {
  const point = (at_ms: number, value: number | null): Point => ({
    at_ms,
    spread: value === null ? null : { mean: value, min: value, max: value },
  });
  test('has a gap where nothing was measured, and goes on where only its value is unknown', () => {
    const points = [point(0, 1), point(60, null), point(120, 2), point(300, 3)];
    assert.deepEqual(
      segments(points, 90).map((run) => run.map(({ at_ms }) => at_ms)),
      [[0, 120], [300]],
    );
    assert.deepEqual(segments([], 90), []);
  });
  test('is read at the nearest point', () => {
    const points = [point(0, 1), point(100, 2)];
    assert.deepEqual(
      [-5, 49, 51, 500].map((at_ms) => nearest(points, at_ms)),
      [0, 0, 1, 1],
    );
    assert.equal(nearest([], 0), -1);
  });
});

test('a value has its unit', () => {
  assert.deepEqual(
    [say(0, 'share'), say(0.034, 'share'), say(0.5, 'share'), say(2048, 'bytes'), say(2048, 'rate')],
    ['0 %', '3.4 %', '50 %', '2 KiB', '2 KiB/s'],
  );
});
