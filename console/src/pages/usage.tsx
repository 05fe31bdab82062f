/**
 * The page of the organisation's usage: charts of all instances together over a chosen range, and a table with the sum
 * of each instance.
 */
import { signal } from '@preact/signals';
import { useState } from 'preact/hooks';
import type { Usage } from '../../../client/src/berth.ts';
import { addUsage, usageByInstance } from '../../../client/src/usage.ts';
import { berth } from '../api.ts';
import { instances, MAX_INSTANCES } from '../live/instances.ts';
import { Choice } from '../ui/button.tsx';
import { Chart, useForgetting, ValueTable } from '../ui/chart.tsx';
import { type Point, say, type Unit } from '../ui/chart-scale.ts';
import { Empty, Loaded, PageHead, Section } from '../ui/page.tsx';
import { Table } from '../ui/table.tsx';
import { useQuery } from '../use-query.ts';

const PAGE = 200;
const MAX_ENTRIES = 20_000;

const chosen_range = signal<RangeName>('24h');

interface Used {
  readonly entries: readonly Usage[];
  readonly from_ms: number;
  readonly to_ms: number;
}

export function UsagePage() {
  const range = chosen_range.value;
  const query = useQuery(`usage ${range}`, (signal) => readUsage(range, signal));
  return (
    <>
      <PageHead
        title="Usage"
        lead={`What the instances of this organisation used by the ${RANGES[range].interval}, at most a minute behind. Kept for 13 months.`}
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
      />
      <Loaded query={query} lines={8}>
        {(used) => <Report used={used} range={range} />}
      </Loaded>
    </>
  );
}

async function readUsage(range: RangeName, signal: AbortSignal): Promise<Used> {
  const { from_ms, to_ms } = rangeUntil(range, Date.now());
  const query = {
    from: new Date(from_ms).toISOString(),
    to: new Date(to_ms).toISOString(),
    interval: RANGES[range].interval,
    limit: PAGE,
  };
  const entries: Usage[] = [];
  for await (const each of berth.list('listUsage', { query }, { signal })) {
    entries.push(each);
    if (entries.length >= MAX_ENTRIES) break;
  }
  return { entries, from_ms, to_ms };
}

function Report({ used, range }: { readonly used: Used; readonly range: RangeName }) {
  const { entries } = used;
  if (entries.length === 0)
    return (
      <Empty icon="chart" title="Nothing was used">
        <p>An instance is counted while its VM runs, and while its disk is in object storage.</p>
      </Empty>
    );
  return (
    <>
      {entries.length >= MAX_ENTRIES && (
        <p class="notice">
          Only the newest {MAX_ENTRIES} entries are shown. Choose a shorter range, or use{' '}
          <code>berth usage</code>.
        </p>
      )}
      <Total used={used} range={range} />
      <EachInstance entries={entries} />
    </>
  );
}

function Total({
  used: { entries, from_ms, to_ms },
  range,
}: {
  readonly used: Used;
  readonly range: RangeName;
}) {
  const [chosen_ms, setChosen] = useState<number | null>(null);
  useForgetting(chosen_ms !== null, setChosen);
  const { step_ms } = RANGES[range];
  const by_period = usageByPeriod(entries);
  const sum = entries.reduce(addUsage);
  return (
    <Section title="All instances" lead="The sum of each period. The newest one is not over.">
      <div class="charts">
        {AMOUNTS.map((amount) => (
          <Chart
            key={amount.title}
            title={amount.title}
            unit={amount.unit}
            points={pointsOf(amount, by_period, { from_ms, to_ms, step_ms })}
            {...{ from_ms, to_ms, chosen_ms, onChoose: setChosen, is_live: false, gap_ms: step_ms * 1.5 }}
            otherwise={`${say(amount.of(sum), amount.unit)} in all`}
            sayTime={({ at_ms }: Point) => sayPeriod(at_ms - step_ms / 2, range)}
          />
        ))}
      </div>
      <ValueTable
        hint="The sum of all instances. Periods without any use are left out."
        heads={AMOUNTS.map(({ title }) => title)}
        rows={() =>
          [...by_period].map(([start_ms, each]) => ({
            at: each.start,
            name: sayPeriod(start_ms, range),
            values: AMOUNTS.map(({ of, unit }) => say(of(each), unit)),
          }))
        }
        empty="Nothing was used in this range."
      />
    </Section>
  );
}

function EachInstance({ entries }: { readonly entries: readonly Usage[] }) {
  const rows = usageByInstance(entries).map((each) => ({ ...each, id: each.instance_id }));
  return (
    <Section title="By instance" lead="The longest running first.">
      <Table
        rows={rows}
        columns={[
          { head: 'Instance', cell: ({ id }) => <InstanceName id={id} /> },
          ...AMOUNTS.map(({ title, unit, of }) => ({
            head: title,
            class: 'number nowrap',
            below: true,
            cell: (row: Usage) => say(of(row), unit),
          })),
        ]}
      />
    </Section>
  );
}

/** An instance that is not in the list of all is deleted. */
function InstanceName({ id }: { readonly id: string }) {
  const present = instances.value?.find((each) => each.id === id)?.name;
  if (present !== undefined) return <a href={`/instances/${present}`}>{present}</a>;
  const is_deleted = instances.value !== undefined && instances.value.length < MAX_INSTANCES;
  return (
    <>
      <code class="wrap">{id}</code>
      {is_deleted && <span class="dim"> (deleted)</span>}
    </>
  );
}

const clock = new Intl.DateTimeFormat('en-GB', { timeStyle: 'short' });
const day_and_clock = new Intl.DateTimeFormat('en-GB', {
  ...{ day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' },
});
const utc_day = new Intl.DateTimeFormat('en-GB', {
  ...{ day: 'numeric', month: 'short', year: 'numeric', timeZone: 'UTC' },
});

/** "24 Nov, 12:00–13:00" in local time, "24 Nov 2026 UTC". */
function sayPeriod(start_ms: number, range: RangeName): string {
  const { interval, step_ms } = RANGES[range];
  if (interval === 'day') return `${utc_day.format(start_ms)} UTC`;
  return `${day_and_clock.format(start_ms)}–${clock.format(start_ms + step_ms)}`;
}

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

const RANGES = {
  '24h': { name: '24 h', interval: 'hour', step_ms: HOUR_MS, count: 24 },
  '7d': { name: '7 days', interval: 'day', step_ms: DAY_MS, count: 7 },
  '30d': { name: '30 days', interval: 'day', step_ms: DAY_MS, count: 30 },
  '12m': { name: '12 months', interval: 'day', step_ms: DAY_MS, count: 365 },
} as const;
type RangeName = keyof typeof RANGES;
const NAMES = Object.entries(RANGES).map(([range, { name }]) => [range as RangeName, name] as const);

type Amounts = Omit<Usage, 'instance_id' | 'start'>;

interface Amount {
  readonly title: string;
  readonly unit: Unit;
  readonly of: (used: Amounts) => number;
}

const AMOUNTS: readonly Amount[] = [
  { title: 'Running time', unit: 'hours', of: (used) => used.running_seconds / 3600 },
  { title: 'CPU time', unit: 'hours', of: (used) => used.cpu_seconds / 3600 },
  { title: 'Memory', unit: 'gib_hours', of: (used) => used.memory_gib_hours },
  { title: 'Stored', unit: 'gib_hours', of: (used) => used.stored_gib_hours },
  { title: 'Flushed', unit: 'bytes', of: (used) => used.flushed_bytes },
  { title: 'HTTP', unit: 'bytes', of: (used) => used.http_bytes },
];

/** The present hour or day is the last of them. Days are those of UTC. */
function rangeUntil(name: RangeName, now_ms: number) {
  const { step_ms, count } = RANGES[name];
  const to_ms = (Math.floor(now_ms / step_ms) + 1) * step_ms;
  return { from_ms: to_ms - count * step_ms, to_ms };
}

/** By its beginning, the sum of all instances in each period with any use. */
function usageByPeriod(entries: readonly Usage[]): ReadonlyMap<number, Usage> {
  const sums = new Map<number, Usage>();
  for (const each of entries) {
    const start_ms = Date.parse(each.start);
    const sum = sums.get(start_ms);
    sums.set(start_ms, sum === undefined ? each : addUsage(sum, each));
  }
  return sums;
}

/** A point for each period; without an entry nothing was used. */
function pointsOf(
  { of }: Amount,
  used: ReadonlyMap<number, Usage>,
  { from_ms, to_ms, step_ms }: { readonly from_ms: number; readonly to_ms: number; readonly step_ms: number },
): Point[] {
  return Array.from({ length: Math.round((to_ms - from_ms) / step_ms) }, (_, nth) => {
    const start_ms = from_ms + nth * step_ms;
    const entry = used.get(start_ms);
    const value = entry === undefined ? 0 : of(entry);
    return { at_ms: start_ms + step_ms / 2, spread: { mean: value, min: value, max: value } };
  });
}
