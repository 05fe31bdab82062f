import { Type } from 'typebox';
import { AppError } from '../../shared/errors.ts';
import type { AppContext } from '../context.ts';
import { principalOf } from '../http/access.ts';
import { closed, InstanceParams, named, nullable, Time } from '../http/schemas.ts';
import { disconnectSignal } from '../http/server/disconnect.ts';
import type { App } from '../http/typed-app.ts';
import { instanceId } from '../instances/routes.ts';
import { findInstance } from '../instances/store.ts';
import { readMetrics } from './metrics.ts';

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
