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
import type { ReportResponse } from '../agent-api/types.ts';
import { present } from '../lib/assert.ts';
import type { HostId } from '../lib/ids.ts';
import type { InternalContext } from './internal.ts';

type AuthenticateHost = (authorization: string | undefined) => Promise<HostId>;

export function registerHostCalls(
  app: FastifyInstance,
  { host_calls, log }: InternalContext,
  authenticate: AuthenticateHost,
): void {
  app.post<{ Body: CallsRequest }>('/internal/v1/calls', async (request, reply): Promise<CallsResponse> => {
    const gone = new AbortController();
    reply.raw.once('close', () => gone.abort());
    const host_id = present(request.host_id, 'host');
    if (request.body.fresh) host_calls.forget(host_id);
    return { calls: await host_calls.take(host_id, POLL_HOLD_MS, gone.signal) };
  });
  app.post<{ Body: AnswerRequest }>('/internal/v1/calls/answer', async (request): Promise<ReportResponse> => {
    const { id, answer } = request.body;
    return {
      outcome: host_calls.answer(present(request.host_id, 'host'), id, answer) ? 'accepted' : 'fenced',
    };
  });
  app.server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    socket.on('error', () => socket.destroy());
    accept(request, socket, head).catch((error: unknown) => {
      log.warn({ err: error }, 'a stream of a host was refused');
      socket.end('HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n\r\n');
    });
  });

  async function accept(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    const host_id = await authenticate(request.headers.authorization);
    const id = /^\/internal\/v1\/calls\/([0-9a-f-]{36})\/stream$/.exec(request.url ?? '')?.[1] ?? '';
    if (request.headers.upgrade !== CONSOLE_PROTOCOL || request.url !== consoleStreamPath(id)) {
      socket.end('HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n');
      return;
    }
    socket.write(
      `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: ${CONSOLE_PROTOCOL}\r\n\r\n`,
    );
    if (head.length > 0) socket.unshift(head);
    if (!host_calls.connect(host_id, id, socket)) socket.destroy();
  }
}
