/** berth metrics: what an instance used over a range of time. */
import type { MetricHistory, MetricHistorySample, MetricSpread } from '../../../client/src/berth.ts';
import type { Call, Command } from '../command.ts';
import { bytes, type Cell, duration, localTime, sparkLine } from '../table.ts';

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
  return undefined;
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
  const cell = (value: number): Cell => ({ text: say(value), value });
  return [
    name,
    cell(Math.min(...known.map(({ spread }) => spread.min))),
    cell(mean),
    cell(Math.max(...known.map(({ spread }) => spread.max))),
    cell(last.spread.mean),
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

export const METRICS: Command = {
  name: 'metrics',
  args: ['NAME'],
  names_instances: true,
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
