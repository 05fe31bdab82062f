/** Internal API: what the ingress asks and reports about HTTP ports. */
import type { FastifyInstance } from 'fastify';
import type { HttpReport } from '../../agent-api/http-port-types.ts';
import { ROUTES } from '../../agent-api/routes.ts';
import { transaction } from '../../db/pool.ts';
import { authoriseRequest } from '../../ports/authorise-request.ts';
import { redeemTicket } from '../../ports/open-port.ts';
import { listHttpRoutes } from '../../ports/route-store.ts';
import { recordUse } from '../../ports/use-store.ts';
import { addHttpBytes } from '../../usage/count-store.ts';
import type { InternalContext } from './internal-context.ts';
import type { RouteChanges } from './route-changes.ts';
import { serveIngress } from './serve.ts';

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
