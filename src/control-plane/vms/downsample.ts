/** Longer periods of a metric history from shorter ones. Pure. */
import { METRICS, type Metric, type Spread, type Spreads } from '../../protocol/metric-types.ts';

export interface MetricSample {
  /** The beginning of the period. */
  readonly at_ms: number;
  /** The measured minutes of the period. */
  readonly minutes: number;
  readonly spreads: Spreads;
}

/**
 * One sample for each period of `step_ms` in which something was measured, oldest first. Each mean is weighted by the measured
 * minutes, and the extremes are kept.
 */
export function downsample(samples: readonly MetricSample[], step_ms: number): MetricSample[] {
  const periods = Map.groupBy(samples, ({ at_ms }) => at_ms - (at_ms % step_ms));
  return [...periods]
    .sort(([one], [other]) => one - other)
    .map(([at_ms, parts]) => ({
      at_ms,
      minutes: parts.reduce((sum, { minutes }) => sum + minutes, 0),
      spreads: Object.fromEntries(METRICS.map((metric) => [metric, joined(parts, metric)])) as Spreads,
    }));
}

function joined(parts: readonly MetricSample[], metric: Metric): Spread | null {
  const known = parts.flatMap(({ minutes, spreads }) => {
    const spread = spreads[metric];
    return spread === null ? [] : [{ minutes, ...spread }];
  });
  if (known.length === 0) return null;
  const weight = known.reduce((sum, { minutes }) => sum + minutes, 0);
  const min = Math.min(...known.map((each) => each.min));
  const max = Math.max(...known.map((each) => each.max));
  const mean = known.reduce((sum, each) => sum + each.mean * (each.minutes / weight), 0);
  // Rounding may move the mean of equal values past them.
  return { mean: Math.min(max, Math.max(min, mean)), min, max };
}
