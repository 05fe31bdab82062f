/**
 * Routes of metrics: what a running VM uses now and over the last hour, which its host answers; and what an instance
 * used over a longer time, from stored samples.
 */
import { Type } from 'typebox';
import type { MetricsResult, VmSample } from '../../protocol/host-calls.ts';
import type { Metric, Spreads } from '../../protocol/host-types.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import type { AppContext } from '../context.ts';
import type { HostCalls } from '../fleet/host-calls.ts';
import { principalOf } from '../http/access.ts';
import { disconnectSignal } from '../http/connections.ts';
import type { App } from '../http/mutate.ts';
import { closed, InstanceParams, named, nullable, oneOf, Time } from '../http/schemas.ts';
import { instanceId } from '../instances/routes.ts';
import { findInstance, type InstanceRow } from '../instances/store.ts';
import { requireMachine } from './console-routes.ts';
import { commandTarget } from './exec-routes.ts';
import { MAX_SAMPLES, type MetricSample, RANGES, readMetricHistory } from './metric-history.ts';

/** Longer than a host that stands still is waited for, which gives a better reason. */
const WITHIN_MS = 30_000;

export interface MetricsPoint extends VmSample {
  /** Of all its cpus, 0 to 1, since the previous sample; null for the first. */
  readonly cpu_share: number | null;
}
export interface VmMetrics {
  readonly now: MetricsPoint;
  readonly interval_seconds: number;
  readonly samples: readonly MetricsPoint[];
}

/** @throws AppError CONFLICT, VM_NOT_RUNNING, UNAVAILABLE */
async function readMetrics(calls: HostCalls, row: InstanceRow, signal: AbortSignal): Promise<VmMetrics> {
  requireMachine(row);
  const { host_id, instance_id, vm_id } = commandTarget(row);
  const call = { kind: 'metrics', instance_id, vm_id } as const;
  const { now, samples, interval_seconds } = await calls.ask<MetricsResult>(host_id, call, WITHIN_MS, signal);
  const points = withShares([...samples, now], row.cpus);
  return { now: points.at(-1) as MetricsPoint, interval_seconds, samples: points.slice(0, -1) };
}

/** QEMU also emulates devices, so the process may exceed its virtual cpus: the share is capped at 1. */
export function withShares(samples: readonly VmSample[], cpus: number): MetricsPoint[] {
  return samples.map((sample, index) => {
    const before = samples[index - 1];
    const elapsed_s = before === undefined ? 0 : (Date.parse(sample.at) - Date.parse(before.at)) / 1000;
    if (before === undefined || elapsed_s <= 0) return { ...sample, cpu_share: null };
    const share = (sample.cpu_seconds - before.cpu_seconds) / elapsed_s / cpus;
    return { ...sample, cpu_share: Math.round(Math.min(1, Math.max(0, share)) * 1000) / 1000 };
  });
}

const Count = Type.Integer({ minimum: 0 });
const MetricsSample = named('MetricsSample', {
  at: Time,
  cpu_seconds: Type.Number({
    minimum: 0,
    description: "The CPU time of the VM's process: of its CPUs, disk and network",
    examples: [41.7],
  }),
  cpu_share: nullable(
    Type.Number({
      minimum: 0,
      maximum: 1,
      description: 'The share of all its CPUs that it used since the sample before',
      examples: [0.12],
    }),
  ),
  memory: closed({
    host_bytes: Type.Integer({
      minimum: 0,
      description: 'The memory that it uses on the host',
      examples: [402_653_184],
    }),
    used_bytes: nullable(
      Type.Integer({
        minimum: 0,
        description: 'As the guest sees it, without caches',
        examples: [301_989_888],
      }),
    ),
    total_bytes: nullable(Type.Integer({ minimum: 0, examples: [503_316_480] })),
  }),
  disk: closed({
    read_bytes: Count,
    written_bytes: Count,
    read_operations: Count,
    write_operations: Count,
  }),
  network: closed({ received_bytes: nullable(Count), sent_bytes: nullable(Count) }),
});
const VmMetrics = named('VmMetrics', {
  now: MetricsSample,
  interval_seconds: Type.Integer({ minimum: 1, examples: [15] }),
  samples: Type.Array(MetricsSample, { maxItems: 240, description: 'The last hour, oldest first' }),
});

export function registerVmMetrics(app: App, { db, host_calls }: AppContext): void {
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/vm/metrics',
    config: { access: 'vm:read', errors: ['CONFLICT', 'VM_NOT_RUNNING'] },
    schema: {
      operationId: 'getVmMetrics',
      summary: 'Get the resource usage of the VM, now and over the last hour',
      description:
        'Counters start at 0 with each boot, network counters also with a soft reboot. A value is null where only the guest knows it, and the guest was not asked (once a minute) or did not answer. The host keeps the hour in memory; its restart discards it.',
      tags: ['VM'],
      params: InstanceParams,
      response: { 200: VmMetrics },
    },
    handler: async (request, reply) => {
      const row = await findInstance(db, principalOf(request).org_id, instanceId(request.params));
      if (!row) throw new AppError('NOT_FOUND');
      const metrics = await readMetrics(host_calls, row, disconnectSignal(reply));
      return { ...metrics, samples: [...metrics.samples] };
    },
  });
}

const DEFAULT_RANGE = '1h';

const Amount = Type.Number({ minimum: 0 });
const MetricSpread = nullable(named('MetricSpread', { mean: Amount, min: Amount, max: Amount }));
const HistorySample = named('MetricHistorySample', {
  at: Type.String({ format: 'date-time', description: 'The beginning of the period' }),
  measured_minutes: Type.Integer({
    minimum: 1,
    description: 'How many minutes of the period a VM ran and was measured',
    examples: [5],
  }),
  cpu_share: MetricSpread,
  memory: closed({ used_bytes: MetricSpread, host_bytes: MetricSpread }),
  disk: closed({ read_bytes_per_second: MetricSpread, written_bytes_per_second: MetricSpread }),
  network: closed({ received_bytes_per_second: MetricSpread, sent_bytes_per_second: MetricSpread }),
  dirty_bytes: MetricSpread,
});
const MetricHistory = named('MetricHistory', {
  range: oneOf(RANGES),
  from: Time,
  to: Time,
  step_seconds: Type.Integer({ minimum: 60, description: 'The length of a period', examples: [300] }),
  samples: Type.Array(HistorySample, {
    maxItems: MAX_SAMPLES,
    description: 'Oldest first; a period in which no VM was measured has none',
  }),
});

export function registerInstanceMetrics(app: App, { db }: AppContext): void {
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/metrics',
    config: { access: 'vm:read' },
    schema: {
      operationId: 'getMetricHistory',
      summary: "Get the history of the instance's resource usage",
      description:
        "What the instance's VMs used, up to 30 days back and across boots, also while none runs. Each period of a step has its mean, minimum and maximum. A value is null where only the guest knows it and it did not answer. The step is 1 minute for 1h and 6h, 5 minutes for 24h, 1 hour for 7d and 3 hours for 30d. A minute appears some 15 seconds after its end; use `GET /v1/instances/{id}/vm/metrics` for the usage now.",
      tags: ['VM'],
      params: InstanceParams,
      querystring: closed({
        range: Type.Optional(
          oneOf(RANGES, { default: DEFAULT_RANGE, description: 'How far back, from now' }),
        ),
      }),
      response: { 200: MetricHistory },
    },
    handler: async (request) => {
      const row = await findInstance(db, principalOf(request).org_id, instanceId(request.params));
      if (!row) throw new AppError('NOT_FOUND');
      const range = request.query.range ?? DEFAULT_RANGE;
      const { from, to, step_seconds, samples } = await readMetricHistory(db, row.id, range);
      return { range, from: rfc3339(from), to: rfc3339(to), step_seconds, samples: samples.map(shown) };
    },
  });
}

function shown({ at_ms, minutes, spreads }: MetricSample) {
  const whole = (metric: Metric) => rounded(spreads, metric, 1);
  return {
    at: rfc3339(new Date(at_ms)),
    measured_minutes: minutes,
    cpu_share: rounded(spreads, 'cpu', 1000),
    memory: { used_bytes: whole('memory_used'), host_bytes: whole('memory_host') },
    disk: { read_bytes_per_second: whole('disk_read'), written_bytes_per_second: whole('disk_written') },
    network: {
      received_bytes_per_second: whole('network_received'),
      sent_bytes_per_second: whole('network_sent'),
    },
    dirty_bytes: whole('dirty'),
  };
}

/** To parts of `one`: 1000 keeps three digits. */
function rounded(spreads: Spreads, metric: Metric, one: number) {
  const spread = spreads[metric];
  const to = (value: number) => Math.round(value * one) / one;
  return spread && { mean: to(spread.mean), min: to(spread.min), max: to(spread.max) };
}
