/**
 * Shows what instances use: `berth usage` by hour, by day or in total, `berth metrics` over a time range, and
 * `berth top` now.
 */
import { setTimeout as pause } from 'node:timers/promises';
import {
  type Berth,
  BerthError,
  type Instance,
  type MetricHistory,
  type MetricHistorySample,
  type MetricSpread,
  type MetricsSample,
  type Usage,
} from '../../../client/src/berth.ts';
import { gibHoursText, hoursText, usageByInstance } from '../../../client/src/usage.ts';
import { type Call, type Command, INSTANCE } from '../command.ts';
import { collect } from '../reading.ts';
import { bytes, type Cell, cell, duration, localTime, sizeCell, sparkLine } from '../table.ts';
import { timeOption } from '../values.ts';

const PERIODS = ['total', 'day', 'hour'] as const;

const gibHours = (value: number): Cell => ({ text: value === 0 ? '-' : gibHoursText(value), value });
const time = (seconds: number): Cell => ({
  text: seconds === 0 ? '-' : hoursText(seconds),
  value: seconds,
});

async function usage({ args, options, session, terminal }: Call): Promise<undefined> {
  const by = PERIODS.find((each) => each === options.text('by')) ?? 'total';
  const berth = session.berth();
  const one = args[0] === undefined ? undefined : await berth.instances.find(args[0]);
  const query = {
    from: timeOption('since', options.text('since')),
    to: timeOption('until', options.text('until')),
    interval: by === 'hour' ? ('hour' as const) : ('day' as const),
    instance: one?.id,
    limit: 200,
  };
  const entries = await collect(berth.list('listUsage', { query }));
  const names = new Map((one ? [one] : await collect(berth.instances.list({ limit: 200 }))).map(nameOf));
  const nameOrId = ({ instance_id }: Usage) => names.get(instance_id) ?? instance_id;
  const shown = by === 'total' ? usageByInstance(entries) : entries;
  terminal.list(shown, {
    headings: [
      ...(by === 'total' ? [] : ['START']),
      ...['INSTANCE', 'RUNNING', 'CPU TIME', 'MEMORY', 'STORED', 'FLUSHED', 'HTTP'],
    ],
    row: (each) => [
      ...(by === 'total' ? [] : [startOf(each, by)]),
      {
        text: names.has(each.instance_id) ? nameOrId(each) : `${each.instance_id} (deleted)`,
        value: nameOrId(each),
      },
      time(each.running_seconds),
      time(each.cpu_seconds),
      gibHours(each.memory_gib_hours),
      gibHours(each.stored_gib_hours),
      sizeCell(each.flushed_bytes),
      sizeCell(each.http_bytes),
    ],
    quiet: nameOrId,
    empty: 'Nothing was used in this time.',
  });
}

const nameOf = ({ id, name }: { id: string; name: string }) => [id, name] as const;

/** Days are those of UTC, hours are shown in local time. */
function startOf({ start }: Usage, by: 'day' | 'hour'): Cell {
  return { text: by === 'day' ? start.slice(0, 10) : localTime(start).slice(0, -3), value: start };
}

export const USAGE: Command = {
  name: 'usage',
  args: ['[NAME]'],
  names_instances: true,
  lists: true,
  summary:
    'show how long instances ran and how much they used and stored, up to 13 months back. GiB h are GiB times hours, days are those of UTC, and deleted instances are included',
  example: 'berth usage --since 7d --by day',
  options: {
    since: {
      type: 'string',
      value: 'TIME',
      field: 'from',
      help: 'from then on: a duration such as 7d, or a time; default: 30d',
    },
    until: {
      type: 'string',
      value: 'TIME',
      field: 'to',
      help: 'until then: a duration such as 1d, or a time; default: now',
    },
    by: {
      type: 'string',
      value: 'PERIOD',
      choices: PERIODS,
      field: 'interval',
      help: 'one row for each instance and day or hour, or only the total (default)',
    },
  },
  run: usage,
};

const RANGES = ['1h', '6h', '24h', '7d', '30d'] as const satisfies readonly MetricHistory['range'][];
const DEFAULT_RANGE = '1h';
/** So that a row fits a terminal of 80 columns. */
const SPARK_CELLS = 18;
const MINUTE_MS = 60_000;

interface Quantity {
  readonly name: string;
  readonly of: (sample: MetricHistorySample) => MetricSpread | null;
  readonly say: (value: number) => string;
  readonly unit: string;
}

const percent = (value: number) => `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
const rate = (value: number) => `${bytes(value)}/s`;

const QUANTITIES: readonly Quantity[] = [
  { name: 'cpu', of: (s) => s.cpu_share, say: percent, unit: 'share' },
  { name: 'memory', of: (s) => s.memory.used_bytes, say: bytes, unit: 'bytes' },
  { name: 'host memory', of: (s) => s.memory.host_bytes, say: bytes, unit: 'bytes' },
  { name: 'disk read', of: (s) => s.disk.read_bytes_per_second, say: rate, unit: 'bytes/s' },
  { name: 'disk written', of: (s) => s.disk.written_bytes_per_second, say: rate, unit: 'bytes/s' },
  { name: 'network received', of: (s) => s.network.received_bytes_per_second, say: rate, unit: 'bytes/s' },
  { name: 'network sent', of: (s) => s.network.sent_bytes_per_second, say: rate, unit: 'bytes/s' },
  { name: 'unsaved', of: (s) => s.dirty_bytes, say: bytes, unit: 'bytes' },
];

const rangeOf = (text: string | undefined) => RANGES.find((each) => each === text) ?? DEFAULT_RANGE;

async function metrics({ args, options, session, terminal }: Call): Promise<undefined> {
  const range = rangeOf(options.text('range'));
  const berth = session.berth();
  const { id, name, vm } = await berth.instances.find(args[0] ?? '');
  const history = await berth.call('getMetricHistory', { path: { id }, query: { range } });
  if (terminal.format === 'json') return void terminal.json(history);
  const { samples, from, to } = history;
  const measured = samples.reduce((sum, { measured_minutes }) => sum + measured_minutes, 0);
  if (measured > 0) {
    const ran = measured === 1 ? '1 min' : duration(measured * MINUTE_MS);
    terminal.say(`${name} from ${minuteOf(from)} to ${minuteOf(to)}: ran ${ran}`);
  }
  terminal.list(measured > 0 ? QUANTITIES : [], {
    headings: ['METRIC', 'MIN', 'AVG', 'MAX', 'LAST', { for_people: 'TREND' }],
    row: (quantity) => rowOf(quantity, history),
    more: { headings: ['UNIT'], row: ({ unit }) => [unit] },
    quiet: (quantity) => quantity.name,
    empty: nothingMeasured(name, range, vm.boot),
  });
}

function rowOf({ name, of, say }: Quantity, { samples, from, to }: MetricHistory): Cell[] {
  const known = samples.flatMap((sample) => {
    const spread = of(sample);
    return spread ? [{ spread, at_ms: Date.parse(sample.at), minutes: sample.measured_minutes }] : [];
  });
  const last = known.at(-1);
  if (!last) return [name, '-', '-', '-', '-', ''];
  const minutes = known.reduce((sum, each) => sum + each.minutes, 0);
  const mean = known.reduce((sum, { spread, minutes: weight }) => sum + spread.mean * (weight / minutes), 0);
  const said = (value: number) => cell(say(value), value);
  return [
    name,
    said(Math.min(...known.map(({ spread }) => spread.min))),
    said(mean),
    said(Math.max(...known.map(({ spread }) => spread.max))),
    said(last.spread.mean),
    sparkLine(
      known.map(({ at_ms, spread }) => ({ at_ms, value: spread.mean })),
      { from_ms: Date.parse(from), to_ms: Date.parse(to), cells: SPARK_CELLS },
    ),
  ];
}

function nothingMeasured(name: string, range: MetricHistory['range'], boot: number): string {
  if (boot === 0) return `${name} has never run, so nothing was measured.\n  next: berth start ${name}`;
  const longer = range === '30d' ? '' : `\n  next: berth metrics ${name} --range 30d`;
  return `Nothing was measured of ${name} in this time: it did not run, or for less than two minutes.${longer}`;
}

const minuteOf = (time: string) => localTime(time).slice(0, -3);

export const METRICS_COMMAND: Command = {
  name: 'metrics',
  ...INSTANCE,
  lists: true,
  summary: 'show what an instance used, in the last hour or up to 30 days back, also while it is stopped',
  example: 'berth metrics web --range 24h',
  options: {
    range: {
      type: 'string',
      value: 'RANGE',
      choices: RANGES,
      help: `how far back: ${RANGES.join(', ')}; default: ${DEFAULT_RANGE}`,
    },
  },
  run: metrics,
};

/** Between two samples, over which rates are averages. */
const EVERY_MS = 2_000;
/** Clears the terminal, and begins at its top. */
const CLEAR = '\x1b[H\x1b[2J';

type Samples = ReadonlyMap<string, MetricsSample>;

/** A running VM in one row; rates are per second. */
interface Use {
  readonly name: string;
  readonly instance_id: string;
  /** 1 is one processor. */
  readonly cpu: number;
  readonly memory_bytes: number;
  readonly read_bytes: number;
  readonly written_bytes: number;
  /** Null: its host does not know. */
  readonly received_bytes: number | null;
  readonly sent_bytes: number | null;
}

async function top(call: Call): Promise<undefined> {
  const { options, session, terminal, signal } = call;
  const berth = session.berth();
  const once = options.flag('once') || !process.stdout.isTTY || terminal.format !== 'human';
  const read = async () => collect(berth.instances.list({ state: 'running', limit: 200 }));
  let before = await samplesOf(berth, await read());
  for (;;) {
    await pause(EVERY_MS, undefined, { signal });
    const running = await read();
    const now = await samplesOf(berth, running);
    if (!once) terminal.picture(CLEAR);
    showUse(call, usesOf(running, now, before));
    if (once) return undefined;
    before = now;
  }
}

/** By instance. A VM that has just stopped has none. */
async function samplesOf(berth: Berth, running: readonly Instance[]): Promise<Samples> {
  const samples = new Map<string, MetricsSample>();
  const read = async ({ id }: Instance) => {
    const { now } = await berth.call('getVmMetrics', { path: { id } });
    samples.set(id, now);
  };
  const results = await Promise.allSettled(running.map(read));
  for (const result of results) {
    if (result.status === 'fulfilled') continue;
    const gone = result.reason instanceof BerthError && [404, 409].includes(result.reason.status);
    if (!gone) throw result.reason;
  }
  return samples;
}

/** Of the VMs that have both samples; the busiest first. */
function usesOf(running: readonly Instance[], now: Samples, before: Samples): Use[] {
  const uses = running.flatMap((instance) => {
    const [last, first] = [now.get(instance.id), before.get(instance.id)];
    const seconds = last && first ? (Date.parse(last.at) - Date.parse(first.at)) / 1_000 : 0;
    return last && first && seconds > 0 ? [useOf(instance, last, first, seconds)] : [];
  });
  return uses.sort((a, b) => b.cpu - a.cpu);
}

function useOf(
  { id, name }: Instance,
  { cpu_seconds, memory, disk, network }: MetricsSample,
  before: MetricsSample,
  seconds: number,
): Use {
  // The counters of a VM that was started again begin at 0.
  const rate = (now: number, then: number) => Math.max(0, now - then) / seconds;
  const perhaps = (now: number | null, then: number | null) =>
    now === null || then === null ? null : Math.round(rate(now, then));
  return {
    name,
    instance_id: id,
    cpu: rate(cpu_seconds, before.cpu_seconds),
    memory_bytes: memory.used_bytes ?? memory.host_bytes,
    read_bytes: Math.round(rate(disk.read_bytes, before.disk.read_bytes)),
    written_bytes: Math.round(rate(disk.written_bytes, before.disk.written_bytes)),
    received_bytes: perhaps(network.received_bytes, before.network.received_bytes),
    sent_bytes: perhaps(network.sent_bytes, before.network.sent_bytes),
  };
}

const rateCell = (value: number | null): Cell =>
  value === null ? cell('-', null) : cell(`${bytes(value)}/s`, value);

function showUse({ terminal }: Call, uses: readonly Use[]): void {
  terminal.list(uses, {
    headings: ['NAME', 'CPU', 'MEMORY', 'READ', 'WRITTEN', 'RECEIVED', 'SENT'],
    row: (use) => [
      use.name,
      cell(`${Math.round(use.cpu * 100)} %`, use.cpu),
      sizeCell(use.memory_bytes),
      rateCell(use.read_bytes),
      rateCell(use.written_bytes),
      rateCell(use.received_bytes),
      rateCell(use.sent_bytes),
    ],
    quiet: ({ name }) => name,
    empty: 'No VM is running. Start one: berth start NAME',
  });
}

export const TOP: Command = {
  name: 'top',
  lists: true,
  summary:
    'show what the running VMs use now, the busiest first, renewed until Ctrl-C. CPU is 100 % for one processor',
  example: 'berth top',
  options: { once: { type: 'boolean', help: 'print one table and end, as without a terminal' } },
  run: top,
};
