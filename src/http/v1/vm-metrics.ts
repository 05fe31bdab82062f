import { Type } from 'typebox';
import { findInstance } from '../../instances/store.ts';
import { AppError } from '../../lib/errors.ts';
import { readMetrics } from '../../vms/metrics.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import type { AppContext } from '../context.ts';
import { hangUp } from '../hang-up.ts';
import { COMMON, closed, EmptyBody, errors, InstanceParams, named, nullable, Time } from '../schemas.ts';
import { instanceId } from './instances.ts';

const Count = Type.Integer({ minimum: 0 });
const MetricsSample = named('MetricsSample', {
  at: Time,
  cpu_seconds: Type.Number({ minimum: 0, description: "Of the VM's process: its cpus, disk and network" }),
  cpu_share: nullable(
    Type.Number({ minimum: 0, maximum: 1, description: 'Of all its cpus, since the sample before' }),
  ),
  memory: closed({
    host_bytes: Type.Integer({ minimum: 0, description: 'What it takes of the host' }),
    used_bytes: nullable(Type.Integer({ minimum: 0, description: 'As the guest sees it, caches left out' })),
    total_bytes: nullable(Count),
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
  interval_seconds: Type.Integer({ minimum: 1 }),
  samples: Type.Array(MetricsSample, { maxItems: 240, description: 'Of the last hour, oldest first' }),
});

export function registerVmMetrics(app: App, { db, host_calls }: AppContext): void {
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/vm/metrics',
    config: { access: 'vm:read' },
    schema: {
      operationId: 'getVmMetrics',
      summary: 'What the VM uses, now and over the last hour',
      description:
        'Counters count since this boot. null: only the guest knows, and it was not asked then (once a minute) or did not answer; its network counters begin anew at a soft reboot. The host keeps the hour in memory and begins anew when it restarts.',
      tags: ['VM'],
      params: InstanceParams,
      querystring: EmptyBody,
      response: { 200: VmMetrics, ...errors(...COMMON, 'NOT_FOUND', 'CONFLICT', 'VM_NOT_RUNNING') },
    },
    handler: async (request, reply) => {
      const row = await findInstance(db, principalOf(request).org_id, instanceId(request.params));
      if (!row) throw new AppError('NOT_FOUND');
      const metrics = await readMetrics(host_calls, row, hangUp(reply));
      return { ...metrics, samples: [...metrics.samples] };
    },
  });
}
