/**
 * Samples the CPU, memory, disk and network use of every VM of this host, every 15 s. What only the guest knows (used
 * memory, network) is asked once a minute, and for a request.
 *
 * `VmMeters` keeps the samples of the last hour (240 per VM) and answers requests for current metrics. `MinuteLog`
 * condenses samples to mean, minimum and maximum of each minute, and reports these to the control plane, which keeps
 * the history. Both are in memory only: a restarted agent begins without samples, and has lost the minutes that were
 * not reported. While the control plane is unreachable, at most WAITING_MAX minutes wait; the oldest are dropped.
 */
import { readFile } from 'node:fs/promises';
import { BATCHES, BatchSender } from '../../protocol/batches.ts';
import type { ControlPlaneClient } from '../../protocol/client.ts';
import { type MetricsResult, type UsageResult, VmSample } from '../../protocol/host-calls.ts';
import {
  METRICS,
  type Metric,
  type MinutesReport,
  type Spread,
  type Spreads,
  type UsedMinute,
} from '../../protocol/host-types.ts';
import { conforms } from '../../protocol/schemas.ts';
import { rfc3339 } from '../../shared/clock.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { pause } from '../../shared/retry.ts';
import type { GuestAgent } from '../guest/guest-agent.ts';
import { memoryUse, networkUse } from '../guest/guest-use.ts';
import type { Reconciler } from '../reconciler/reconciler.ts';
import type { Machine } from '../vm/machine.ts';

const MINUTE_MS = 60_000;
/** An hour of 300 VMs: some 10 MiB. */
const WAITING_MAX = 20_000;

/** At one moment. Absent: not measured. */
export type Readings = Partial<Record<Metric, number>>;

interface OpenMinute {
  readonly at_ms: number;
  readonly readings: Readings[];
}

/**
 * What the VMs of this host used in past minutes, until the control plane has it. In memory: a restarted agent loses the open minute.
 * Bounded: while the control plane is away, the oldest minutes are dropped.
 */
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

/** sysconf(_SC_CLK_TCK) is 100 on every Linux of x86-64. */
const TICKS_A_SECOND = 100;
const PAGE_BYTES = 4096;
/** Short: a flush's freeze may queue behind it. */
const GUEST_MS = 1_000;

/**
 * The resource use of one VM: counters since its process began, and current levels. Most are measured on the host. The others
 * come from the guest's agent, and are null while it does not answer. `guest`: also ask the guest.
 * Rejects when the process or its monitor is gone.
 */
async function measureVm(machine: Machine, guest: boolean): Promise<VmSample> {
  const { pid } = machine.record.identity;
  const [stat, statm, disk, inside] = await Promise.all([
    readFile(`/proc/${pid}/stat`, 'latin1'),
    readFile(`/proc/${pid}/statm`, 'latin1'),
    machine.disk.counters(),
    guest ? askGuest(machine.agent).catch(() => null) : null,
  ]);
  return {
    at: rfc3339(new Date()),
    cpu_seconds: cpuSeconds(stat),
    memory: {
      host_bytes: Number(statm.split(' ')[1]) * PAGE_BYTES,
      used_bytes: inside?.memory.used_bytes ?? null,
      total_bytes: inside?.memory.total_bytes ?? null,
    },
    disk,
    network: inside?.network ?? { received_bytes: null, sent_bytes: null },
  };
}

/** utime and stime of proc(5), fields 14 and 15. The process name before them may contain anything. */
function cpuSeconds(stat: string): number {
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return (Number(fields[11]) + Number(fields[12])) / TICKS_A_SECOND;
}

async function askGuest(agent: GuestAgent) {
  const timeout = { timeout_ms: GUEST_MS };
  return { network: await networkUse(agent, timeout), memory: await memoryUse(agent, timeout) };
}

const SAMPLE_S = 15;
const SAMPLES = 240;
/** A sample costs the guest work: once a minute, and for each read. */
const GUEST_EVERY = 4;

export class VmMeters {
  readonly #samples = new WeakMap<Machine, VmSample[]>();
  readonly #minutes: MinuteLog;
  readonly #runners: () => Iterable<Reconciler>;
  readonly #client: Pick<ControlPlaneClient, 'reportMinutes'>;

  constructor(
    runners: () => Iterable<Reconciler>,
    { client, log }: { readonly client: Pick<ControlPlaneClient, 'reportMinutes'>; readonly log: Log },
  ) {
    this.#runners = runners;
    this.#client = client;
    this.#minutes = new MinuteLog(log);
  }

  async run(signal: AbortSignal): Promise<void> {
    for (let round = 0; !signal.aborted; round++) {
      const all = [...this.#runners()].flatMap((runner) => {
        const machine = runner.machineOf();
        return machine ? [this.#take(runner, machine, round % GUEST_EVERY === 0)] : [];
      });
      await Promise.allSettled(all);
      this.#minutes.endBefore(Date.now());
      void this.#minutes.send((body) => this.#client.reportMinutes(body, signal));
      await pause(SAMPLE_S * 1000, signal);
    }
  }

  /** Rejects when the VM is gone. */
  async read(machine: Machine, guest: boolean): Promise<MetricsResult> {
    const now = await measureVm(machine, guest);
    return { now, interval_seconds: SAMPLE_S, samples: this.#samples.get(machine) ?? [] };
  }

  /** The newest sample of each VM, of at most `limit` VMs. */
  newest(limit: number): UsageResult {
    const vms = [...this.#runners()].flatMap((runner) => {
      const machine = runner.machineOf();
      const sample = machine && this.#samples.get(machine)?.at(-1);
      return sample ? [{ instance_id: runner.instance_id, sample }] : [];
    });
    return { vms: vms.slice(0, limit) };
  }

  async #take(runner: Reconciler, machine: Machine, ask_guest: boolean): Promise<void> {
    const asked = ask_guest && runner.isQuiet;
    const [sample, dirty] = await Promise.all([measureVm(machine, asked), runner.dirtyBytes()]);
    const samples = this.#samples.get(machine) ?? [];
    const before = samples.at(-1);
    const heard = samples.findLast(({ network }) => network.received_bytes !== null);
    this.#minutes.add(
      runner.instance_id,
      Date.parse(sample.at),
      readingsOf(sample, { before, heard, dirty }),
    );
    // One invalid answer of a guest must fail neither its other samples nor the other guests'.
    if (conforms(VmSample, sample)) samples.push(sample);
    if (samples.length > SAMPLES) samples.shift();
    this.#samples.set(machine, samples);
  }
}
