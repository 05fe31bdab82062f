/** Connections whose client is gone, and requests that may take long. */
import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import type { FastifyReply } from 'fastify';
import { errnoOf } from '../../../shared/errors.ts';

/** Aborts when the caller disconnects, or has its answer; aborted already if that has happened before. */
export function disconnectSignal({ raw, request }: FastifyReply): AbortSignal {
  const controller = new AbortController();
  const { socket } = request.raw;
  const gone = () => controller.abort();
  if (socket.destroyed) gone();
  // A response that waits for an earlier one on its connection gets no event of its own.
  socket.once('close', gone);
  raw.once('close', () => {
    socket.off('close', gone);
    gone();
  });
  return controller.signal;
}

/** Requests whose body may take as long as it comes, although Node ends any other that is not complete within a minute. */

const sockets = new WeakSet<Socket>();

/** The handler must bound the silence of the caller. */
export function takesLong(request: IncomingMessage): void {
  const { socket } = request;
  sockets.add(socket);
  request.once('close', () => sockets.delete(socket));
}

/** Whether an error of a client is only that its request takes long, and may. */
export function mayTakeLong(error: Error, socket: Socket): boolean {
  return errnoOf(error) === 'ERR_HTTP_REQUEST_TIMEOUT' && sockets.has(socket);
}
