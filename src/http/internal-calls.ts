/** Internal API: what an agent is asked while a caller waits, what it answers, and the streams of consoles. */
import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import type { FastifyInstance } from 'fastify';
import { POLL_HOLD_MS } from '../agent-api/client.ts';
import {
  type AnswerRequest,
  type CallsRequest,
  type CallsResponse,
  CONSOLE_PROTOCOL,
  consoleStreamPath,
} from '../agent-api/host-calls.ts';
import { joinStreams } from '../agent-api/join-streams.ts';
import type { ReportResponse } from '../agent-api/types.ts';
import { present } from '../lib/assert.ts';
import { AppError } from '../lib/errors.ts';
import type { HostId, InstanceId } from '../lib/ids.ts';
import { sshPlace } from '../vms/tunnel.ts';
import { refuseUpgrade } from './errors.ts';
import { hangUp } from './hang-up.ts';
import type { InternalContext } from './internal.ts';
import { newRequestId } from './request-id.ts';

/** As long as the ingress waits. */
const TUNNEL_OPEN_MS = 5_000;

type AuthenticateHost = (authorization: string | undefined) => Promise<HostId>;

export function registerHostCalls(
  app: FastifyInstance,
  { db, host_calls, log }: InternalContext,
  { authenticate, tunnels }: { authenticate: AuthenticateHost; tunnels: boolean },
): void {
  app.post<{ Body: CallsRequest }>('/internal/v1/calls', async (request, reply): Promise<CallsResponse> => {
    const host_id = present(request.host_id, 'host');
    if (request.body.fresh) host_calls.forget(host_id);
    return { calls: await host_calls.take(host_id, POLL_HOLD_MS, hangUp(reply)) };
  });
  app.post<{ Body: AnswerRequest }>('/internal/v1/calls/answer', async (request): Promise<ReportResponse> => {
    const { id, answer } = request.body;
    return {
      outcome: host_calls.answer(present(request.host_id, 'host'), id, answer) ? 'accepted' : 'fenced',
    };
  });
  app.server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    socket.on('error', () => socket.destroy());
    accept(request, socket, head).catch((error: unknown) =>
      refuseUpgrade(error, socket, newRequestId(), log),
    );
  });

  async function accept(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    const host_id = await authenticate(request.headers.authorization);
    const [, instance_id] = /^\/internal\/v1\/tunnels\/(inst_[0-9a-z]{26})$/.exec(request.url ?? '') ?? [];
    if (tunnels && instance_id !== undefined) return tunnel(instance_id as InstanceId, socket, head);
    const id = /^\/internal\/v1\/calls\/([0-9a-f-]{36})\/stream$/.exec(request.url ?? '')?.[1] ?? '';
    const known = request.headers.upgrade === CONSOLE_PROTOCOL && request.url === consoleStreamPath(id);
    if (!known) throw new AppError('NOT_FOUND');
    begin(socket, head);
    if (!host_calls.connect(host_id, id, socket)) socket.destroy();
  }

  /** Joins the ingress with the agent of the VM's host. */
  async function tunnel(instance_id: InstanceId, socket: Duplex, head: Buffer): Promise<void> {
    const place = await sshPlace(db, instance_id);
    const gone = new AbortController();
    socket.once('close', () => gone.abort());
    if (!place) throw new AppError('NOT_FOUND');
    const call = { kind: 'ssh', instance_id, vm_id: place.vm_id } as const;
    const line = await host_calls.open(place.host_id, call, TUNNEL_OPEN_MS, gone.signal);
    begin(socket, head);
    joinStreams(socket, line);
  }
}

function begin(socket: Duplex, head: Buffer): void {
  socket.write(
    `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: ${CONSOLE_PROTOCOL}\r\n\r\n`,
  );
  if (head.length > 0) socket.unshift(head);
}
