/** The history of an instance as a table. */
import type { MetricHistory, MetricSpread } from '../../../client/src/berth.ts';
import { exactly } from '../format.ts';
import { say, type Unit } from '../ui/chart-scale.ts';
import { ValueTable } from '../ui/value-table.tsx';
import { QUANTITIES } from './metric-points.ts';

export function MetricTable({ history: { samples } }: { readonly history: MetricHistory }) {
  return (
    <ValueTable
      hint="The mean of each period, and its maximum in brackets."
      heads={QUANTITIES.map(({ title }) => title)}
      rows={() =>
        samples.toReversed().map((sample) => ({
          at: sample.at,
          name: exactly(sample.at),
          values: QUANTITIES.map(({ past, unit }) => sayBoth(past(sample), unit)),
        }))
      }
      empty="Nothing was measured in this range."
    />
  );
}

function sayBoth(spread: MetricSpread | null, unit: Unit): string {
  if (spread === null) return '–';
  const extremes = spread.max > spread.mean ? ` (${say(spread.max, unit)})` : '';
  return `${say(spread.mean, unit)}${extremes}`;
}
