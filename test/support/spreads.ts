import { METRICS, type Spread, type Spreads } from '../../src/protocol/host-types.ts';

/** The same spread of every metric, or none of any. */
export function spreadsOf(each: Spread | null): Spreads {
  return Object.fromEntries(METRICS.map((metric): [string, Spread | null] => [metric, each])) as Spreads;
}
