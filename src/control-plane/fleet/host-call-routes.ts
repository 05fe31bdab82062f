/**
 * Serves the internal API of calls to hosts. An agent takes the calls that wait for its host by long poll, and sends
 * answers or opens streams, such as consoles. An ingress opens its tunnels to guests here. Other control planes take
 * and answer calls that wait in this one (`registerPeers`): these routes are served over TLS only, and only to them.
 */
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import type { FastifyInstance } from 'fastify';
import type { TSchema } from 'typebox';
import { POLL_HOLD_MS } from '../../protocol/client.ts';
import { type CallAnswer, CONSOLE_PROTOCOL, consoleStreamPath } from '../../protocol/host-calls.ts';
import { AGENT_PROTOCOL, PROTOCOL_HEADER, refusalBody } from '../../protocol/protocol.ts';
import { type AgentRoute, ROUTES } from '../../protocol/routes.ts';
import type { Of } from '../../protocol/schemas.ts';
import { AppError, RETRY_LATER_S } from '../../shared/errors.ts';
import { type HostId, type InstanceId, newRequestId } from '../../shared/ids.ts';
import { joinStreams } from '../../shared/streams.ts';
import { disconnectSignal } from '../http/connections.ts';
import { refuseUpgrade } from '../http/errors.ts';
import {
  accepted,
  type CallingHost,
  type CallingIngress,
  type InternalContext,
  serve,
} from '../internal/serve.ts';
import { runningTarget } from '../vms/forward-stream.ts';

/** What other control planes ask about calls that wait here. */
export function registerPeers(
  app: FastifyInstance,
  { host_calls }: Pick<InternalContext, 'host_calls'>,
): void {
  servePeer(app, ROUTES.peerTake, ({ host_id }) => ({
    calls: host_calls.pick(host_id, 'pulled'),
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
function peerStream(url: string): { host_id: HostId; call_id: string } | null {
  const [, host_id, call_id] =
    /^\/internal\/v1\/peers\/streams\/(host_[0-9a-z]{26})\/([0-9a-f-]{36})$/.exec(url) ?? [];
  return host_id && call_id ? { host_id: host_id as HostId, call_id } : null;
}

/** The ingress waits as long. */
const TUNNEL_OPEN_MS = 5_000;
/** Of the listener's connections; the others are for leases, polls and reports. */
const STREAMS_SHARE = 0.75;

type Admit<Caller> = (
  headers: IncomingHttpHeaders,
) => Promise<{ readonly caller: Caller; readonly refusal: string | null }>;

export function registerHostCalls(
  app: FastifyInstance,
  { db, host_calls, log, peers, connections }: InternalContext,
  admit: {
    readonly host: Admit<CallingHost>;
    readonly ingress: Admit<CallingIngress>;
    /** On the listener for other machines. */
    readonly far: boolean;
  },
): void {
  serve(app, ROUTES.calls, async ({ host: { id }, body, reply }) => {
    if (body.fresh) await host_calls.failAllTaken(id);
    const calls = await host_calls.take(id, POLL_HOLD_MS, disconnectSignal(reply));
    reply.raw.once('finish', () => {
      host_calls
        .passed(id, calls)
        .catch((error: unknown) => log.warn({ err: error }, 'calls could not be confirmed'));
    });
    return { calls };
  });
  serve(app, ROUTES.answerCall, async ({ host, body }) =>
    accepted(await host_calls.answer(host.id, body.id, body.answer as CallAnswer)),
  );
  app.server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    socket.on('error', () => socket.destroy());
    accept(request, socket, head).catch((error: unknown) =>
      refuseUpgrade(error, socket, newRequestId(), log),
    );
  });

  async function accept(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    const of_peer = admit.far && peers && peerStream(request.url ?? '');
    if (of_peer) return acceptPeer(request, of_peer, { socket, head });
    const [, instance_id, port] =
      /^\/internal\/v1\/tunnels\/(inst_[0-9a-z]{26})(?:\/([1-9][0-9]{0,4}))?$/.exec(request.url ?? '') ?? [];
    if (instance_id !== undefined) {
      const { refusal } = await admit.ingress(request.headers);
      if (refusal !== null) return refuse(refusal, socket);
      requireRoom(request);
      return tunnel(instance_id as InstanceId, port === undefined ? null : Number(port), { socket, head });
    }
    const { caller: host, refusal } = await admit.host(request.headers);
    if (refusal !== null) return refuse(refusal, socket);
    requireRoom(request);
    const id = /^\/internal\/v1\/calls\/([0-9a-f-]{36})\/stream$/.exec(request.url ?? '')?.[1] ?? '';
    const known = request.headers.upgrade === CONSOLE_PROTOCOL && request.url === consoleStreamPath(id);
    if (!known) throw new AppError('NOT_FOUND');
    if (!(await host_calls.connect(host.id, id, () => begin(socket, head)))) begin(socket, head).destroy();
  }

  /** @throws AppError UNAVAILABLE when streams have their share of the connections */
  function requireRoom(request: IncomingMessage): void {
    if (connections?.trust(request.socket, STREAMS_SHARE) === false)
      throw new AppError('UNAVAILABLE', {
        message: 'This control plane has as many streams to guests as it may have. Try again later.',
        retry_after_seconds: RETRY_LATER_S,
      });
  }

  /** Another control plane passes on a stream that a host has opened to it. */
  async function acceptPeer(
    request: IncomingMessage,
    { host_id, call_id }: { host_id: HostId; call_id: string },
    { socket, head }: { socket: Duplex; head: Buffer },
  ): Promise<void> {
    if (!peers?.isPeer(request.headers)) throw new AppError('UNAUTHENTICATED');
    requireRoom(request);
    if (!host_calls.connectOurs(host_id, call_id, () => begin(socket, head))) begin(socket, head).destroy();
  }

  /** Splices the ingress's stream with one to the agent of the VM's host. */
  async function tunnel(
    instance_id: InstanceId,
    port: number | null,
    { socket, head }: { socket: Duplex; head: Buffer },
  ): Promise<void> {
    const place = await runningTarget(db, instance_id);
    const gone = new AbortController();
    socket.once('close', () => gone.abort());
    if (!place) throw new AppError('NOT_FOUND');
    const vm = { instance_id, vm_id: place.vm_id };
    const call = port === null ? ({ kind: 'ssh', ...vm } as const) : ({ kind: 'port', ...vm, port } as const);
    const line = await host_calls.open(place.host_id, call, TUNNEL_OPEN_MS, gone.signal);
    begin(socket, head);
    joinStreams(socket, line);
  }
}

/** 426, as for any other call. */
function refuse(refusal: string, socket: Duplex): void {
  socket.once('finish', () => socket.destroy());
  socket.end(
    `HTTP/1.1 426 Upgrade Required\r\nContent-Type: application/json; charset=utf-8\r\nConnection: close\r\n` +
      `${PROTOCOL_HEADER}: ${AGENT_PROTOCOL}\r\n\r\n${JSON.stringify(refusalBody(refusal))}`,
  );
}

/** Accepts the upgrade. */
function begin(socket: Duplex, head: Buffer): Duplex {
  socket.write(
    `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: ${CONSOLE_PROTOCOL}\r\n\r\n`,
  );
  if (head.length > 0) socket.unshift(head);
  return socket;
}
