/**
 * The charts of an instance's use over a chosen range, from an hour to 30 days. The history spans stops of the VM. The
 * range of an hour also shows live samples while the VM runs.
 */
import { signal } from '@preact/signals';
import { useState } from 'preact/hooks';
import type { Instance, MetricHistory, MetricSpread, VmState } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { clockTime, duration, exactly } from '../format.ts';
import { Choice } from '../ui/button.tsx';
import { Chart, useForgetting, ValueTable } from '../ui/chart.tsx';
import { type Point, say, type Unit } from '../ui/chart-scale.ts';
import { Section } from '../ui/page.tsx';
import { useQuery, useReloads } from '../use-query.ts';
import { pointsOf, QUANTITIES } from './metric-points.ts';

type Range = MetricHistory['range'];
const HOUR_MS = 3_600_000;
const RANGES = {
  '1h': { name: '1 h', ms: HOUR_MS },
  '6h': { name: '6 h', ms: 6 * HOUR_MS },
  '24h': { name: '24 h', ms: 24 * HOUR_MS },
  '7d': { name: '7 days', ms: 7 * 24 * HOUR_MS },
  '30d': { name: '30 days', ms: 30 * 24 * HOUR_MS },
} as const satisfies Record<Range, { name: string; ms: number }>;
const NAMES = Object.entries(RANGES).map(([range, { name }]) => [range as Range, name] as const);

/** The same for every instance that is looked at. */
const chosen_range = signal<Range>('1h');

const ON: readonly VmState[] = ['running', 'restarting'];
const LASTING: readonly VmState[] = ['stopped', 'suspended', 'failed'];

const LIVE_EVERY_MS = 5_000;
const HISTORY_EVERY_MS = 60_000;
const MIB = 1024 * 1024;

export function Charts({ instance }: { readonly instance: Instance }) {
  const { id, vm } = instance;
  const range = chosen_range.value;
  const [chosen_ms, setChosen] = useState<number | null>(null);
  useForgetting(chosen_ms !== null, setChosen);
  const history = useQuery(`history ${id} ${range}`, (signal) =>
    call('getMetricHistory', { path: { id }, query: { range } }, { signal }),
  );
  useReloads(history.reload, HISTORY_EVERY_MS);
  const is_live = range === '1h' && ON.includes(vm.state);
  const live = useQuery(`metrics ${id} ${vm.boot} ${is_live}`, async (signal) =>
    is_live ? call('getVmMetrics', { path: { id } }, { signal }) : null,
  );
  useReloads(live.reload, is_live ? LIVE_EVERY_MS : null);
  const samples = live.data ? [...live.data.samples, live.data.now] : [];
  const step_ms = (history.data?.step_seconds ?? 60) * 1000;
  const live_from_ms = Date.parse(samples[0]?.at ?? '');
  const to_ms = Date.parse(samples.at(-1)?.at ?? history.data?.to ?? new Date().toISOString());
  const shared = {
    ...{ from_ms: to_ms - RANGES[range].ms, to_ms, gap_ms: step_ms * 1.5 },
    ...{ chosen_ms, onChoose: setChosen, is_live, otherwise: whyEnded(instance) },
    sayTime: ({ at_ms }: Point) =>
      samples.length > 0 && at_ms >= live_from_ms ? second.format(at_ms) : sayPeriod(at_ms, step_ms, range),
  };
  const error = history.error ?? live.error;
  return (
    <Section
      title="Usage"
      lead={
        error === null ? (
          <>
            {leadOf(step_ms, is_live)} <a href="/usage">Usage of all instances</a>
          </>
        ) : (
          `Not current: ${error}`
        )
      }
      actions={
        <Choice
          name="Range"
          options={NAMES}
          value={range}
          onChoose={(next) => {
            chosen_range.value = next;
          }}
        />
      }
    >
      <div class="charts" aria-busy={history.data === undefined && history.error === null}>
        {QUANTITIES.map((quantity) => (
          <Chart
            key={quantity.title}
            title={quantity.title}
            unit={quantity.unit}
            points={[
              ...pointsOf(quantity, history.data, samples),
              ...presentOf(quantity, instance, is_live ? to_ms : null),
            ]}
            {...shared}
            {...maxOf(quantity, instance)}
          />
        ))}
      </div>
      {history.data && <MetricTable history={history.data} />}
    </Section>
  );
}

/** @param now_ms null: no VM runs, or the range is too long to show the present */
function presentOf({ now }: (typeof QUANTITIES)[number], instance: Instance, now_ms: number | null): Point[] {
  if (now === undefined || now_ms === null) return [];
  const value = now(instance);
  return [{ at_ms: now_ms, spread: { mean: value, min: value, max: value } }];
}

function leadOf(step_ms: number, is_live: boolean): string {
  const line = is_live
    ? 'Measured every 15 s; older values are means of a minute.'
    : `The line is the mean of ${duration(step_ms / 1000)}, the band its minimum and maximum.`;
  return `${line} In a gap no VM ran, or Berth was down. Kept for 30 days.`;
}

function maxOf({ unit, of_memory }: (typeof QUANTITIES)[number], { memory_mib }: Instance): { max?: number } {
  if (unit === 'share') return { max: 1 };
  return of_memory === true ? { max: memory_mib * MIB } : {};
}

/** Why nothing is measured now; null: it is. */
function whyEnded({ vm: { state, stopped_at } }: Instance): string | null {
  if (ON.includes(state)) return null;
  return LASTING.includes(state) && stopped_at !== null
    ? `${state} since ${clockTime(Date.parse(stopped_at))}`
    : state;
}

const second = new Intl.DateTimeFormat('en-GB', { timeStyle: 'medium' });
const clock = new Intl.DateTimeFormat('en-GB', { timeStyle: 'short' });
const day_and_clock = new Intl.DateTimeFormat('en-GB', {
  ...{ day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' },
});

/** The period around `at_ms`: "09:05–09:10", "24 Nov, 12:00–15:00". */
function sayPeriod(at_ms: number, step_ms: number, range: Range): string {
  if (range === '1h' || range === '6h') return clock.format(at_ms);
  return `${day_and_clock.format(at_ms - step_ms / 2)}–${clock.format(at_ms + step_ms / 2)}`;
}

/** The history of an instance as a table. */
function MetricTable({ history: { samples } }: { readonly history: MetricHistory }) {
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
