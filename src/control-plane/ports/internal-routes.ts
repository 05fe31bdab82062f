/** Internal API: what the ingress asks and reports about HTTP ports. */
import type { FastifyInstance } from 'fastify';
import type { HttpReport } from '../../protocol/http-port-types.ts';
import { ROUTES } from '../../protocol/routes.ts';
import { transaction } from '../db/pool.ts';
import type { InternalContext } from '../internal/context.ts';
import { serveIngress } from '../internal/serve.ts';
import { addHttpBytes } from '../usage/count-store.ts';
import { authoriseRequest } from './authorise-request.ts';
import { redeemTicket } from './open-port.ts';
import type { RouteChanges } from './route-changes.ts';
import { listHttpRoutes } from './route-store.ts';
import { recordUse } from './use-store.ts';

export function registerHttpPorts(
  app: FastifyInstance,
  { db, http, metrics }: InternalContext,
  route_changes: RouteChanges,
): void {
  serveIngress(app, ROUTES.httpRoutes, ({ ingress, body, reply }) =>
    route_changes.answer(body, reply, (only) => listHttpRoutes(db, http, ingress.host_id, only)),
  );
  serveIngress(app, ROUTES.authoriseHttp, ({ body }) => authoriseRequest(db, http, body));
  serveIngress(app, ROUTES.redeemHttpTicket, async ({ body: { hostname, ticket } }) => {
    const redeemed = await transaction(db, (tx) => redeemTicket(tx, hostname, ticket));
    return redeemed ? { outcome: 'redeemed' as const, ...redeemed } : { outcome: 'refused' as const };
  });
  serveIngress(app, ROUTES.reportHttp, async ({ body }) => {
    await transaction(db, async (tx) => {
      await recordUse(tx, body);
      await addHttpBytes(tx, body.ports.map(bytesOf));
    });
    metrics?.ports.add(body);
    return {};
  });
}

function bytesOf({ port_id, sent_bytes, received_bytes }: HttpReport['ports'][number]) {
  return { port_id, bytes: sent_bytes + received_bytes };
}
