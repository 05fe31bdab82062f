/** Signs requests to the object store for hosts, which have no credentials for it. */
import type { FastifyInstance } from 'fastify';
import { ROUTES } from '../../protocol/routes.ts';
import { permitObjects } from '../instances/permit-objects.ts';
import { type InternalContext, serve } from '../internal/serve.ts';

export function registerObjectPermissions(
  app: FastifyInstance,
  { db, log, sign }: Pick<InternalContext, 'db' | 'log' | 'sign'>,
): void {
  serve(app, ROUTES.objectPermissions, async ({ host, body: { objects } }) => {
    const permitted = await permitObjects(db, host.id, objects);
    const permissions = await Promise.all(
      objects.map(async (object, i) => {
        if (permitted[i] && sign) return sign(object);
        log.info(
          { host_id: host.id, method: object.method, object: object.key },
          'a host may not use an object',
        );
        return null;
      }),
    );
    return { permissions };
  });
}
