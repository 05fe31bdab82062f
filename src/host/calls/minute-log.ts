/**
 * What the VMs of this host used in past minutes, until the control plane has it. In memory: a restarted agent loses the open minute.
 * Bounded: while the control plane is away, the oldest minutes are dropped.
 */
import { BATCHES, BatchSender } from '../../protocol/batches.ts';
import type { VmSample } from '../../protocol/host-calls.ts';
import {
  METRICS,
  type Metric,
  type MinutesReport,
  type Spread,
  type Spreads,
  type UsedMinute,
} from '../../protocol/host-types.ts';
import { rfc3339 } from '../../shared/clock.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';

const MINUTE_MS = 60_000;
/** An hour of 300 VMs: some 10 MiB. */
const WAITING_MAX = 20_000;

/** At one moment. Absent: not measured. */
export type Readings = Partial<Record<Metric, number>>;

interface OpenMinute {
  readonly at_ms: number;
  readonly readings: Readings[];
}

export class MinuteLog {
  readonly #open = new Map<InstanceId, OpenMinute>();
  readonly #sender: BatchSender<typeof BATCHES.minutes.item>;
  #waiting: UsedMinute[] = [];
  #sending = false;

  constructor(log: Pick<Log, 'warn'>) {
    this.#sender = new BatchSender(BATCHES.minutes, log);
  }

  get waiting(): number {
    return this.#waiting.length;
  }

  add(instance_id: InstanceId, at_ms: number, readings: Readings): void {
    const minute_ms = at_ms - (at_ms % MINUTE_MS);
    const open = this.#open.get(instance_id);
    if (open?.at_ms === minute_ms) {
      open.readings.push(readings);
      return;
    }
    if (open) this.#end(instance_id, open);
    this.#open.set(instance_id, { at_ms: minute_ms, readings: [readings] });
  }

  /** Ends the minutes before `now_ms`, also those of VMs that are gone. */
  endBefore(now_ms: number): void {
    const minute_ms = now_ms - (now_ms % MINUTE_MS);
    for (const [instance_id, open] of this.#open) {
      if (open.at_ms === minute_ms) continue;
      this.#open.delete(instance_id);
      this.#end(instance_id, open);
    }
  }

  /** Sends what waits. What cannot be sent now waits for the next call. One call at a time. */
  async send(report: (body: MinutesReport) => Promise<unknown>): Promise<void> {
    if (this.#sending) return;
    this.#sending = true;
    const settled = (minutes: readonly UsedMinute[]) => {
      const sent = new Set(minutes);
      this.#waiting = this.#waiting.filter((each) => !sent.has(each));
    };
    try {
      while (this.#waiting.length > 0)
        await this.#sender.send(this.#waiting, { post: (minutes) => report({ minutes }), settled });
    } catch {
      // The control plane does not answer.
    } finally {
      this.#sending = false;
    }
  }

  #end(instance_id: InstanceId, { at_ms, readings }: OpenMinute): void {
    this.#waiting.push({ instance_id, at: rfc3339(new Date(at_ms)), spreads: spreadsOf(readings) });
    if (this.#waiting.length > WAITING_MAX) this.#waiting.shift();
  }
}

export function spreadsOf(readings: readonly Readings[]): Spreads {
  const of = (metric: Metric): Spread | null => {
    const values = readings.flatMap((each) => each[metric] ?? []);
    if (values.length === 0) return null;
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    return { mean, min: Math.min(...values), max: Math.max(...values) };
  };
  return Object.fromEntries(METRICS.map((metric) => [metric, of(metric)])) as Spreads;
}

/**
 * What a VM uses at `after`: levels, and rates since `before`, the sample before it in the same boot. The guest is asked less often:
 * `heard` is the last sample before with network counters. A counter that fell was reset, and has no rate.
 */
export function readingsOf(
  after: VmSample,
  {
    before,
    heard,
    dirty,
  }: { before?: VmSample | undefined; heard?: VmSample | undefined; dirty: number | null },
): Readings {
  const { used_bytes, host_bytes } = after.memory;
  const found: Record<Metric, number | null> = {
    cpu: rate(before, after, ({ cpu_seconds }) => cpu_seconds),
    memory_used: used_bytes,
    memory_host: host_bytes,
    disk_read: rate(before, after, ({ disk }) => disk.read_bytes),
    disk_written: rate(before, after, ({ disk }) => disk.written_bytes),
    network_received: rate(heard, after, ({ network }) => network.received_bytes),
    network_sent: rate(heard, after, ({ network }) => network.sent_bytes),
    dirty,
  };
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== null));
}

/** Of a counter, per second; null: unknown. */
function rate(
  before: VmSample | undefined,
  after: VmSample,
  counterOf: (sample: VmSample) => number | null,
): number | null {
  const [earlier, later] = [before && counterOf(before), counterOf(after)];
  if (before === undefined || typeof earlier !== 'number' || later === null || later < earlier) return null;
  const seconds = (Date.parse(after.at) - Date.parse(before.at)) / 1000;
  return seconds > 0 ? (later - earlier) / seconds : null;
}
