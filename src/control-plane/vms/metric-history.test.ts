import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { METRICS, type Metric, type Spread, type Spreads } from '../../protocol/host-types.ts';
import { downsample, type MetricSample } from './metric-history.ts';

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;

const spread = fc
  .array(fc.double({ min: 0, max: 1e12, noNaN: true }), { minLength: 3, maxLength: 3 })
  .map((values) => values.sort((one, other) => one - other))
  .map(([min, mean, max]) => ({ min: min ?? 0, mean: mean ?? 0, max: max ?? 0 }));
const spreads: fc.Arbitrary<Spreads> = fc.record(
  Object.fromEntries(METRICS.map((metric) => [metric, fc.option(spread)])) as Record<
    Metric,
    fc.Arbitrary<Spread | null>
  >,
);
const samples: fc.Arbitrary<MetricSample[]> = fc.uniqueArray(
  fc.record({
    at_ms: fc.integer({ min: 0, max: 60 * 24 * 3 }).map((minute) => minute * MINUTE_MS),
    minutes: fc.integer({ min: 1, max: 60 }),
    spreads,
  }),
  { selector: ({ at_ms }) => at_ms, maxLength: 60 },
);
const step = fc.constantFrom(1, 5, 60, 180).map((minutes) => minutes * MINUTE_MS);

const close = (one: number, other: number) =>
  assert.ok(Math.abs(one - other) <= 1e-9 * Math.max(1, Math.abs(one)), `${one} is not ${other}`);

test('every period with a sample has exactly one, aligned and in order, and none is invented', () => {
  fc.assert(
    fc.property(samples, step, (given, step_ms) => {
      const found = downsample(given, step_ms).map(({ at_ms }) => at_ms);
      const wanted = new Set(given.map(({ at_ms }) => Math.floor(at_ms / step_ms) * step_ms));
      assert.deepEqual(
        found,
        [...wanted].sort((one, other) => one - other),
      );
    }),
  );
});

test('measured minutes, extremes and the weighted mean are those of the parts; what no part has measured stays unknown', () => {
  fc.assert(
    fc.property(samples, step, (given, step_ms) => {
      for (const { at_ms, minutes, spreads } of downsample(given, step_ms)) {
        const parts = given.filter((each) => each.at_ms >= at_ms && each.at_ms < at_ms + step_ms);
        assert.equal(
          minutes,
          parts.reduce((sum, each) => sum + each.minutes, 0),
        );
        for (const metric of METRICS) {
          const known = parts.flatMap((each) => {
            const of = each.spreads[metric];
            return of === null ? [] : [{ ...of, minutes: each.minutes }];
          });
          const joined = spreads[metric];
          if (known.length === 0) assert.equal(joined, null);
          else {
            assert.ok(joined !== null && joined.min <= joined.mean && joined.mean <= joined.max);
            assert.equal(joined.min, Math.min(...known.map(({ min }) => min)));
            assert.equal(joined.max, Math.max(...known.map(({ max }) => max)));
            const weight = known.reduce((sum, each) => sum + each.minutes, 0);
            close(joined.mean, known.reduce((sum, each) => sum + each.mean * each.minutes, 0) / weight);
          }
        }
      }
    }),
  );
});

test('in two steps the minutes and extremes are the same as in one', () => {
  fc.assert(
    fc.property(samples, (given) => {
      const extremes = (list: readonly MetricSample[]) =>
        list.map(({ at_ms, minutes, spreads }) => [
          at_ms,
          minutes,
          ...METRICS.map((metric) => spreads[metric] && [spreads[metric].min, spreads[metric].max]),
        ]);
      const at_once = downsample(given, 3 * HOUR_MS);
      const in_two = downsample(downsample(given, HOUR_MS), 3 * HOUR_MS);
      assert.deepEqual(extremes(in_two), extremes(at_once));
    }),
  );
});
