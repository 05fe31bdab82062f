/**
 * Defines the quantities that an instance's charts show, and computes each chart's points from the metric history and
 * from the samples of the running VM. Pure.
 */
import type {
  Instance,
  MetricHistory,
  MetricHistorySample,
  MetricSpread,
  MetricsSample,
} from '../../../client/src/berth.ts';
import type { Point, Unit } from '../ui/chart-scale.ts';

interface Quantity {
  readonly title: string;
  readonly unit: Unit;
  /** The memory of the instance is the end of the scale. */
  readonly of_memory?: boolean;
  readonly past: (sample: MetricHistorySample) => MetricSpread | null;
  /** Of the running VM; a counter becomes a rate. Absent: its samples lack it. */
  readonly live?: { readonly value: (sample: MetricsSample) => number | null; readonly counts?: boolean };
  /** The present value, where the samples lack it. */
  readonly now?: (instance: Pick<Instance, 'disk'>) => number;
}

export const QUANTITIES: readonly Quantity[] = [
  { title: 'CPU', unit: 'share', past: (s) => s.cpu_share, live: { value: (s) => s.cpu_share } },
  {
    title: 'Memory in the guest',
    unit: 'bytes',
    of_memory: true,
    past: (s) => s.memory.used_bytes,
    live: { value: (s) => s.memory.used_bytes },
  },
  {
    title: 'Host memory',
    unit: 'bytes',
    past: (s) => s.memory.host_bytes,
    live: { value: (s) => s.memory.host_bytes },
  },
  {
    title: 'Disk read',
    unit: 'rate',
    past: (s) => s.disk.read_bytes_per_second,
    live: { value: (s) => s.disk.read_bytes, counts: true },
  },
  {
    title: 'Disk written',
    unit: 'rate',
    past: (s) => s.disk.written_bytes_per_second,
    live: { value: (s) => s.disk.written_bytes, counts: true },
  },
  {
    title: 'Network received',
    unit: 'rate',
    past: (s) => s.network.received_bytes_per_second,
    live: { value: (s) => s.network.received_bytes, counts: true },
  },
  {
    title: 'Network sent',
    unit: 'rate',
    past: (s) => s.network.sent_bytes_per_second,
    live: { value: (s) => s.network.sent_bytes, counts: true },
  },
  { title: 'Unsaved', unit: 'bytes', past: (s) => s.dirty_bytes, now: ({ disk }) => disk.dirty_bytes },
];

/** `live` are samples of the running VM, oldest first. Before the first of them the history is shown. */
export function pointsOf(
  { past, live }: Quantity,
  history: MetricHistory | undefined,
  samples: readonly MetricsSample[],
): Point[] {
  const [first] = live ? samples : [];
  const live_from_ms = first ? Date.parse(first.at) : Number.POSITIVE_INFINITY;
  const half_ms = (history?.step_seconds ?? 0) * 500;
  const before = (history?.samples ?? [])
    .map((sample) => ({ at_ms: Date.parse(sample.at) + half_ms, spread: past(sample) }))
    .filter(({ at_ms }) => at_ms < live_from_ms);
  if (!live) return before;
  const values = samples.map((sample) => ({ at_ms: Date.parse(sample.at), value: live.value(sample) }));
  const now = live.counts === true ? rates(values) : values;
  return [
    ...before,
    ...now.map(({ at_ms, value }) => ({
      at_ms,
      spread: value === null ? null : { mean: value, min: value, max: value },
    })),
  ];
}

interface Value {
  readonly at_ms: number;
  readonly value: number | null;
}

/** The rate of a counter per second, since the last known value. A counter that fell was reset. */
function rates(values: readonly Value[]): Value[] {
  let last: Value | undefined;
  return values.map((each) => {
    const { at_ms, value } = each;
    if (value === null) return each;
    const before = last;
    last = each;
    if (!before || before.value === null || value < before.value || at_ms <= before.at_ms)
      return { at_ms, value: null };
    return { at_ms, value: ((value - before.value) * 1000) / (at_ms - before.at_ms) };
  });
}
