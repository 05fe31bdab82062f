/**
 * Serves the list of destinations that an instance's VM was denied to reach. The egress policy itself is a field of the
 * instance.
 */
import { Type } from 'typebox';
import { AppError } from '../../shared/errors.ts';
import type { AppContext } from '../context.ts';
import { principalOf } from '../http/access.ts';
import type { App } from '../http/mutate.ts';
import { InstanceParams, named, pageOf, Time } from '../http/schemas.ts';
import { instanceId } from '../instances/routes.ts';
import { findInstance } from '../instances/store.ts';
import { listDenied } from './denied-store.ts';
import { deniedView } from './record-denied.ts';

const DeniedDestination = named('DeniedDestination', {
  at: Time,
  name: Type.Optional(
    Type.String({
      description: 'The name that the guest asked for; absent: not known',
      examples: ['example.org'],
    }),
  ),
  address: Type.Optional(
    Type.String({ description: 'Absent: the look-up of the name was refused', examples: ['203.0.113.7'] }),
  ),
  port: Type.Optional(
    Type.Integer({ description: 'Absent: a look-up, or a protocol without ports', examples: [443] }),
  ),
  count: Type.Integer({ description: 'The attempts, of which `at` is the last', examples: [3] }),
});

export function registerVmEgress(app: App, { db }: AppContext): void {
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/vm/egress/denied',
    config: { access: 'vm:read' },
    schema: {
      operationId: 'listDeniedEgress',
      summary: 'List what the VM was denied to reach',
      description:
        'The last 100 destinations, newest first, also of a stopped VM. They include attempts to reach private addresses, which are closed in every mode.',
      tags: ['VM'],
      params: InstanceParams,
      response: { 200: pageOf(DeniedDestination) },
    },
    handler: async (request) => {
      const id = instanceId(request.params);
      if (!(await findInstance(db, principalOf(request).org_id, id))) throw new AppError('NOT_FOUND');
      return { data: (await listDenied(db, id)).map(deniedView), next_cursor: null };
    },
  });
}
