/** Internal API: what the ingress asks and reports about HTTP ports. */
import type { FastifyInstance } from 'fastify';
import type { OpenPortResult } from '../../protocol/host-calls.ts';
import type { HttpReport, OpenPortRequest, OpenPortResponse } from '../../protocol/ingress-types.ts';
import { ROUTES } from '../../protocol/routes.ts';
import { AppError } from '../../shared/errors.ts';
import { transaction } from '../db/pool.ts';
import { disconnectSignal } from '../http/connections.ts';
import { type InternalContext, serveIngress } from '../internal/serve.ts';
import { addHttpBytes } from '../usage/store.ts';
import { runningPlace } from '../vms/forward-stream.ts';
import { authoriseRequest } from './authorise-request.ts';
import { redeemTicket } from './open-port.ts';
import type { RouteChanges } from './route-changes.ts';
import { listHttpRoutes, recordUse } from './store.ts';

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

// Internal API: the address of a guest's TCP port on its host, for an ingress.

/** Less than the ingress waits. */
const OPEN_MS = 5_000;

export function registerOpenPort(app: FastifyInstance, context: InternalContext): void {
  serveIngress(app, ROUTES.openPort, async ({ body, reply }) => {
    try {
      return await openPort(context, body, disconnectSignal(reply));
    } catch (error) {
      const code = error instanceof AppError ? error.code : null;
      if (code === 'BAD_GATEWAY') return { outcome: 'not_listening' as const };
      if (code === 'VM_NOT_RUNNING') return { outcome: 'not_running' as const };
      throw error;
    }
  });
}

async function openPort(
  { db, host_calls }: InternalContext,
  { instance_id, port }: OpenPortRequest,
  signal: AbortSignal,
): Promise<OpenPortResponse> {
  const place = await runningPlace(db, instance_id);
  if (!place) return { outcome: 'not_running' };
  const call = { kind: 'open_port', instance_id, vm_id: place.vm_id, port } as const;
  const { address } = await host_calls.ask<OpenPortResult>(place.host_id, call, OPEN_MS, signal);
  return { outcome: 'open', address };
}
