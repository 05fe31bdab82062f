/** Internal API: what other control planes ask about calls that wait here. Served over TLS only, and only to them. */
import type { FastifyInstance } from 'fastify';
import type { TSchema } from 'typebox';
import type { CallAnswer } from '../../protocol/host-calls.ts';
import { type AgentRoute, ROUTES } from '../../protocol/routes.ts';
import type { Of } from '../../protocol/schemas.ts';
import { AppError } from '../../shared/errors.ts';
import type { HostId } from '../../shared/ids.ts';
import { accepted, type InternalContext } from '../internal/serve.ts';

export function registerPeers(
  app: FastifyInstance,
  { host_calls }: Pick<InternalContext, 'host_calls'>,
): void {
  servePeer(app, ROUTES.peerTake, ({ host_id, protocol }) => ({
    calls: host_calls.pick(host_id, protocol, 'pulled'),
  }));
  servePeer(app, ROUTES.peerConfirm, ({ host_id, call_ids }) => {
    host_calls.confirm(host_id, call_ids);
    return {};
  });
  servePeer(app, ROUTES.peerAnswer, ({ host_id, id, answer }) =>
    accepted(host_calls.answerOurs(host_id, id, answer as CallAnswer)),
  );
  servePeer(app, ROUTES.peerFailTaken, ({ host_id }) => {
    host_calls.failTaken(host_id);
    return {};
  });
}

function servePeer<Request extends TSchema, Response extends TSchema>(
  app: FastifyInstance,
  route: AgentRoute<Request, Response>,
  handle: (body: Of<Request>) => Of<Response>,
): void {
  app.post(route.path, { schema: { body: route.request } }, async (request) => {
    if (!request.is_of_peer) throw new AppError('UNAUTHENTICATED');
    return handle(request.body as Of<Request>);
  });
}

/** The host and the call of a stream that another control plane opens; null: it is none. */
export function peerStream(url: string): { host_id: HostId; call_id: string } | null {
  const [, host_id, call_id] =
    /^\/internal\/v1\/peers\/streams\/(host_[0-9a-z]{26})\/([0-9a-f-]{36})$/.exec(url) ?? [];
  return host_id && call_id ? { host_id: host_id as HostId, call_id } : null;
}
