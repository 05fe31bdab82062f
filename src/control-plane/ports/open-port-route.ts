/** Internal API: the address of a guest's TCP port on its host, for an ingress. */
import type { FastifyInstance } from 'fastify';
import type { OpenPortResult } from '../../protocol/host-calls.ts';
import type { OpenPortRequest, OpenPortResponse } from '../../protocol/ingress-types.ts';
import { ROUTES } from '../../protocol/routes.ts';
import { AppError } from '../../shared/errors.ts';
import { disconnectSignal } from '../http/server/disconnect.ts';
import type { InternalContext } from '../internal/context.ts';
import { serveIngress } from '../internal/serve.ts';
import { runningPlace } from '../vms/tunnel.ts';

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
