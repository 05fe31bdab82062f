/** What the organisation's instances used: all of them over time as charts, and each of them in a table. */
import { signal } from '@preact/signals';
import { useState } from 'preact/hooks';
import type { Usage } from '../../../client/src/berth.ts';
import { addUsage, usageByInstance } from '../../../client/src/usage.ts';
import { berth } from '../api.ts';
import { instances, MAX_INSTANCES } from '../live/instances.ts';
import { Chart } from '../ui/chart.tsx';
import { type Point, say } from '../ui/chart-scale.ts';
import { Choice } from '../ui/choice.tsx';
import { Empty, Loaded, PageHead, Section } from '../ui/page.tsx';
import { Table } from '../ui/table.tsx';
import { useForgetting } from '../ui/use-forgetting.ts';
import { ValueTable } from '../ui/value-table.tsx';
import {
  AMOUNTS,
  pointsOf,
  RANGES,
  type RangeName,
  rangeUntil,
  usageByPeriod,
} from '../usage/usage-periods.ts';
import { useQuery } from '../use-query.ts';

const NAMES = Object.entries(RANGES).map(([range, { name }]) => [range as RangeName, name] as const);
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
