/** Charts of the VM's last hour from the server's samples: CPUs, memory, disk and network. Dirty bytes since the page was opened. */
import { useEffect } from 'preact/hooks';
import type { Instance, MetricsSample } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { bytes } from '../format.ts';
import { dirty_samples } from '../live/instances.ts';
import { Chart, type Point } from '../ui/chart.tsx';
import { Section } from '../ui/page.tsx';
import { useQuery } from '../use-query.ts';

const EVERY_MS = 5_000;
const HOUR_MS = 3_600_000;
const LEAST_SPAN_MS = 120_000;

export function Charts({ instance }: { readonly instance: Instance }) {
  const { id } = instance;
  const metrics = useQuery(`metrics ${id}`, (signal) => call('getVmMetrics', { path: { id } }, { signal }));
  const { reload } = metrics;
  useEffect(() => {
    let ended = false;
    let timer: ReturnType<typeof setTimeout>;
    // Waits for the answer, however long it takes, because a new request aborts the previous one.
    const again = async () => {
      if (!document.hidden) await reload();
      if (!ended) timer = setTimeout(again, EVERY_MS);
    };
    timer = setTimeout(again, EVERY_MS);
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [reload]);
  const samples = metrics.data ? [...metrics.data.samples, metrics.data.now] : [];
  const span_ms = spanOf(samples.map(({ at }) => Date.parse(at)));
  const series = (read: (sample: MetricsSample) => number | null): Point[] =>
    samples.map((sample) => ({ at_ms: Date.parse(sample.at), value: read(sample) }));
  const total = samples.findLast(({ memory }) => memory.total_bytes !== null)?.memory.total_bytes;
  const dirty = dirty_samples.get(id) ?? [];
  const percent = (value: number) => `${(value * 100).toFixed(value < 0.1 ? 1 : 0)} %`;
  const rate = (value: number) => `${bytes(value)}/s`;
  return (
    <Section
      title="Use"
      lead={metrics.error === null ? 'Sampled by the host; up to an hour.' : `Not current: ${metrics.error}`}
    >
      <div class="charts">
        <Chart
          title="CPU"
          points={series(({ cpu_share }) => cpu_share)}
          format={percent}
          max={1}
          span_ms={span_ms}
        />
        <Chart
          title="Memory, in the guest"
          points={known(series(({ memory }) => memory.used_bytes))}
          format={bytes}
          {...(typeof total === 'number' ? { max: total } : {})}
          span_ms={span_ms}
        />
        <Chart
          title="Disk, read"
          points={rates(series(({ disk }) => disk.read_bytes))}
          format={rate}
          span_ms={span_ms}
        />
        <Chart
          title="Disk, written"
          points={rates(series(({ disk }) => disk.written_bytes))}
          format={rate}
          span_ms={span_ms}
        />
        <Chart
          title="Unsaved"
          points={dirty.map(({ at_ms, dirty_bytes }) => ({ at_ms, value: dirty_bytes }))}
          format={bytes}
          span_ms={spanOf(dirty.map(({ at_ms }) => at_ms))}
        />
        <Chart
          title="Network, received"
          points={rates(known(series(({ network }) => network.received_bytes)))}
          format={rate}
          span_ms={span_ms}
        />
      </div>
    </Section>
  );
}

/** The time that the samples cover, between two minutes and an hour. */
function spanOf(times_ms: readonly number[]): number {
  const [first, last] = [times_ms[0], times_ms.at(-1)];
  if (first === undefined || last === undefined) return LEAST_SPAN_MS;
  return Math.min(HOUR_MS, Math.max(LEAST_SPAN_MS, last - first));
}

/** The points with a value. A sample lacks it if the guest was not asked. */
function known(points: readonly Point[]): Point[] {
  return points.filter(({ value }) => value !== null);
}

/** The rate of a counter, a second. A counter that fell was reset. */
function rates(points: readonly Point[]): Point[] {
  return points.slice(1).map(({ at_ms, value }, nth) => {
    const before = points[nth];
    if (value === null || !before || before.value === null || value < before.value)
      return { at_ms, value: null };
    const seconds = (at_ms - before.at_ms) / 1000;
    return { at_ms, value: seconds > 0 ? (value - before.value) / seconds : null };
  });
}
